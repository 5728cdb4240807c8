"""``unifiedamp diff`` over one device and two replicas, and over two runs on two replicas."""

import json

import pytest

from unifiedamp.recording.difference import difference
from unifiedamp.recording.reading import collect

pytest.importorskip("tensorflow")

PLANTED = {
    "plain": None,
    "renamed": None,
    "rate": (1, "update", "layer0", ""),
    "data": (2, "data", "", "on rank 1"),
    "gradient": (2, "backward", "layer1", "on rank 1"),
    "reduction": (2, "reduction", "layer1.kernel", ""),
    "overflow": (2, "reduction", "layer1.kernel", ""),
}
FORMS = {
    "eager": tuple(PLANTED),
    "compiled": ("plain", "data", "gradient", "reduction"),
    "max": ("plain", "reduction"),
}
CASES = [(form, case) for form, cases in FORMS.items() for case in cases]


@pytest.fixture
def recorded(replica_results):
    def read(form, case):
        return collect(json.dumps(record) for record in replica_results["differences"][form][case])

    return read


def check(found, case):
    if PLANTED[case] is None:
        assert found.first is None
    else:
        step, part, name, _ = PLANTED[case]
        assert (found.first.step, found.first.part) == (step, part)
        assert found.first.name.startswith(name)


@pytest.mark.parametrize(("form", "case"), CASES)
def test_two_replicas_and_two_replicas(recorded, case, form):
    found = difference(recorded("eager", "plain"), recorded(form, case))
    check(found, case)
    assert found.first is None or PLANTED[case][3] in found.first.note
    assert not any("ranks" in line for line in found.compared)


@pytest.mark.parametrize(("form", "case"), CASES)
def test_one_device_and_two_replicas(recorded, case, form):
    found = difference(recorded("eager", "alone"), recorded(form, case))
    check(found, case)
    assert any(line.startswith("1 and 2 ranks: layers by norms and sums") for line in found.compared)
    if case == "gradient":
        assert found.first.note == "in the sum of the ranks' own gradients"


def test_the_gradient_whose_sum_overflowed_is_named(recorded):
    seen = recorded("eager", "overflow").steps[1]
    assert seen["applied"] is False
    assert seen["ranks"]["first"] == {"during": "reduction", "ranks": [], "name": "layer1.kernel"}
