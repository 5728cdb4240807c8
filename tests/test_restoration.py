"""Leaving a scope or a region, also by an exception and in threads, leaves the process as it was found."""

import threading

import numpy as np
import pytest
from conftest import installed, load_harness
from driver import session

MIXED = "mixed_bfloat16"


@pytest.mark.parametrize("region", ["scope", "autocast", "inference"])
@pytest.mark.parametrize("failing", [False, True])
def test_state_is_as_found(harness, region, failing):
    amp = session(harness, policy=MIXED)
    before = harness.global_state()
    try:
        with getattr(amp, region)():
            if region != "scope":
                assert harness.run_op("matmul") == "bfloat16"
            if failing:
                raise KeyError("inside")
    except KeyError:
        assert failing
    assert harness.global_state() == before
    assert harness.run_op("matmul") == "float32"


def test_regions_nest(harness):
    amp = session(harness, policy=MIXED)
    with amp.autocast():
        assert harness.run_op("matmul") == "bfloat16"
        with amp.autocast(enabled=False):
            assert harness.run_op("matmul") == "float32"
            with amp.autocast():
                assert harness.run_op("matmul") == "bfloat16"
            assert harness.run_op("matmul") == "float32"
        with amp.autocast(policy="float32"):
            assert harness.run_op("matmul") == "float32"
        assert harness.run_op("matmul") == "bfloat16"


def test_another_threads_region_is_not_ours(harness):
    amp = session(harness, policy=MIXED)
    seen = {}
    inside, done = threading.Event(), threading.Event()

    def other():
        with amp.autocast():
            seen["inside"] = harness.run_op("matmul")
            inside.set()
            done.wait(30)
        seen["after"] = harness.run_op("matmul")

    thread = threading.Thread(target=other)
    before = harness.global_state()
    thread.start()
    assert inside.wait(30)
    seen["here"] = harness.run_op("matmul")
    done.set()
    thread.join(30)
    assert seen == {"inside": "bfloat16", "here": "float32", "after": "float32"}
    assert harness.global_state() == before


def test_two_policies_in_one_process(harness):
    mixed, plain = session(harness, policy=MIXED), session(harness, policy="float32")
    with mixed.autocast():
        assert harness.run_op("matmul") == "bfloat16"
        with plain.autocast():
            assert harness.run_op("matmul") == "float32"
        assert harness.run_op("matmul") == "bfloat16"


def test_every_backend_in_one_process():
    """A step on each in turn, twice, and none disturbs another."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(4, 4)).astype(np.float32), np.zeros(4, np.float32)) for _ in range(2)]
    x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
    harnesses = [load_harness(name) for name in installed()]
    runs = []
    for harness in harnesses:
        amp = session(harness, policy=MIXED)
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], 0.05)
        runs.append((harness, amp, *amp.prepare(model, optimizer)))
    losses = {harness.backend: [] for harness in harnesses}
    for _ in range(4):
        for harness, amp, model, optimizer in runs:
            loss = amp.backward(
                lambda h=harness, a=amp, m=model: h.mean_square(m(a.to_native(x)), a.to_native(y)), optimizer
            )
            amp.step(optimizer)
            losses[harness.backend].append(float(np.ravel(amp.to_numpy(loss))[0]))
    for curve in losses.values():
        assert curve == sorted(curve, reverse=True)
        assert curve == pytest.approx(next(iter(losses.values())), rel=0.02)
