"""The conformance vectors, the canonical seven steps first, through each trainer's own loop."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import probes

import unifiedamp
from unifiedamp.loss_scale import parse_loss_scale

FOLDER = Path(unifiedamp.__file__).parent / "conformance" / "vectors"
VECTORS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
ONE = [name for name, vector in VECTORS.items() if len(vector["gradients"][0]) == 1]
KEYS = ("scale_after", "good_steps", "bad_steps", "applied_steps", "skipped_steps", "weights")


def train(host, vector, **changes):
    gradients = [float(value) for (value,) in vector["gradients"]]
    scale = parse_loss_scale(vector["loss_scale"])
    what = probes.Run(
        probes.session(loss_scale=scale),
        gradients,
        lr=vector["learning_rate"],
        accumulate=vector["accumulate_steps"],
        **changes,
    )
    return probes.run(host, what)


def test_every_vector_is_read():
    assert "canonical" in ONE
    assert set(VECTORS) - set(ONE) == {"two_optimizers"}


@pytest.mark.parametrize("host", probes.HOSTS)
@pytest.mark.parametrize("name", ONE)
def test_vector(host, name):
    vector = VECTORS[name]
    ran = train(host, vector)
    # A session that accumulates notes each micro-batch; a trainer notes steps.
    every = vector["accumulate_steps"]
    for key in KEYS:
        assert ran.column(key) == vector["expected"][key][every - 1 :: every], key


@pytest.mark.parametrize("host", probes.HOSTS)
def test_the_scheduler_is_held_on_skipped_steps(host):
    """Lightning #5558, #18828 and #21339: no warning of an order of calls either, since warnings are errors here."""
    gradients = [float("inf"), 1.0, float("nan"), 1.0, 1.0]
    what = probes.Run(probes.session(loss_scale=4.0), gradients, lr=1.0, schedule=0.5)
    ran = probes.run(host, what)
    assert ran.column("applied_steps") == [0, 1, 1, 2, 3]
    assert ran.scheduler.get_last_lr() == [0.5**3]
    assert [each[0] for each in ran.column("weights")] == [1.0, 0.0, 0.0, -0.5, -0.75]
