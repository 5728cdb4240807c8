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
FIT_FORMS = {
    "eager": ("plain",),
    "compiled": ("plain", "rate", "data", "gradient", "overflow", "native gradient", "native reduction"),
}
FIT_CASES = [(form, case) for form, cases in FIT_FORMS.items() for case in cases]


def reader(results):
    return lambda form, case: collect(json.dumps(record) for record in results[form][case])


@pytest.fixture
def recorded(replica_results):
    return reader(replica_results["differences"])


@pytest.fixture
def fitted(replica_results):
    return reader(replica_results["fit_differences"])


def check(found, case):
    """Of two runs, the second of which has a planted fault."""
    if PLANTED[case] is None:
        assert found.first is None
    else:
        step, part, name, _ = PLANTED[case]
        assert (found.first.step, found.first.part) == (step, part)
        assert found.first.name.startswith(name)


def check_alone(found, case):
    """Of one device and two replicas."""
    check(found, case)
    assert any(line.startswith("1 and 2 ranks: layers by norms and sums") for line in found.compared)
    if case == "gradient":
        assert found.first.note == "in the sum of the ranks' own gradients"


@pytest.mark.parametrize(("form", "case"), CASES)
def test_two_replicas_and_two_replicas(recorded, case, form):
    found = difference(recorded("eager", "plain"), recorded(form, case))
    check(found, case)
    assert found.first is None or PLANTED[case][3] in found.first.note
    assert not any("ranks" in line for line in found.compared)


@pytest.mark.parametrize(("form", "case"), CASES)
def test_one_device_and_two_replicas(recorded, case, form):
    check_alone(difference(recorded("eager", "alone"), recorded(form, case)), case)


@pytest.mark.parametrize(("form", "case"), FIT_CASES)
def test_fit_on_two_replicas(fitted, case, form):
    """Against ``fit`` on two replicas and on one device; "native": Keras's own optimizer, without a loss scale."""
    run, fault = fitted(form, case), case.removeprefix("native ")
    found = difference(fitted("eager", "plain"), run)
    check(found, fault)
    assert found.first is None or PLANTED[fault][3] in found.first.note
    check_alone(difference(fitted("eager", "alone"), run), fault)
    assert [step["reason"] for step in run.steps] == ["first", "every", "every"]


@pytest.mark.parametrize("case", ["plain", "data", "gradient", "overflow"])
@pytest.mark.parametrize("run", ["recorded", "fitted"])
def test_two_workers(request, worker_results, run, case):
    """Of a ``MultiWorkerMirroredStrategy``: against two replicas of one process, and one device."""
    place = {"recorded": 1, "fitted": 2}[run]
    first, second = (result[place] for result in worker_results)
    if not first:
        pytest.skip("Keras 3 does not run fit under a MultiWorkerMirroredStrategy")
    assert not any(second.values())  # the first worker writes
    workers, replicas = collect(json.dumps(record) for record in first[case]), request.getfixturevalue(run)
    found = difference(replicas("eager", "plain"), workers)
    check(found, case)
    assert found.first is None or PLANTED[case][3] in found.first.note
    check_alone(difference(replicas("eager", "alone"), workers), case)
    seen = workers.steps[1]
    assert seen["applied"] == (case != "overflow")
    where = {"during": "reduction", "ranks": [], "name": "layer1.kernel"}
    assert seen["ranks"]["first"] == (where if case == "overflow" else None)
    form = {"recorded": "eager", "fitted": "compiled"}[run]
    assert seen["gradients"] == replicas(form, case).steps[1]["gradients"]  # of both workers


@pytest.mark.parametrize("run", ["recorded", "fitted"])
def test_the_gradient_whose_sum_overflowed_is_named(request, run):
    seen = request.getfixturevalue(run)({"recorded": "eager", "fitted": "compiled"}[run], "overflow").steps[1]
    assert seen["applied"] is False
    assert seen["ranks"]["first"] == {"during": "reduction", "ranks": [], "name": "layer1.kernel"}


def test_a_forecast_of_fit_is_that_of_one_device(replica_results):
    alone, together = replica_results["fit_forecast"]["compiled"]
    assert together == alone
    assert "layer1  Dense" in together
