"""A session works in any thread, and two threads' sessions leave each other alone."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session, settled_state

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)
STEPS = ((1.0, 0.5), (math.inf, 1.0), (2.0, 1.0), (1.0, -1.0), (0.5, 0.25))


def prepared(harness, form, policy="mixed_bfloat16"):
    def clip(amp, optimizer):
        amp.clip_grad_norm(optimizer, 1.0)

    return probe_run(harness, form, values=(1.0, -2.0), policy=policy, loss_scale=SCALE, clip=clip)


def train(run, steps=STEPS):
    for gradients in steps:
        run.feed(*gradients)
    return run.weights(), run.scales, run.amp.applied_steps, run.amp.skipped_steps


@pytest.fixture
def elsewhere():
    """Run a function in a thread that has run nothing before; an error in it is raised here."""

    def run(function, *arguments):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *arguments).result(120)

    return run


def test_a_session_made_and_trained_in_a_thread(harness, form, elsewhere):
    assert elsewhere(lambda: train(prepared(harness, form))) == train(prepared(harness, form))


def test_a_session_made_here_and_trained_there(harness, form, elsewhere):
    run = prepared(harness, form)
    train(run, STEPS[:2])
    elsewhere(train, run, STEPS[2:4])
    assert train(run, STEPS[4:]) == train(prepared(harness, form))


@pytest.mark.parametrize("region", ["inference", "autocast"])
def test_a_region_in_another_thread_leaves_this_ones_gradients(harness, region):
    """The same session computes there while a loss is computed here."""
    run = probe_run(harness, values=(1.0,), loss_scale=SCALE)
    amp, x = run.amp, run.amp.to_native(np.float32([2.0]))
    inside, done = threading.Event(), threading.Event()

    def compute():
        with getattr(amp, region)():
            inside.set()
            assert done.wait(60)
            run.model(x)

    with ThreadPoolExecutor(1) as pool:

        def loss():
            computing.append(pool.submit(compute))
            assert inside.wait(60)
            return run.model(x)

        computing = []
        try:
            amp.backward(loss, run.optimizer)
        finally:
            done.set()
        computing[0].result(60)
    assert amp.step(run.optimizer).applied
    assert run.weights() == pytest.approx([0.8], abs=1e-6)


@pytest.mark.needs("op_overrides")
def test_a_region_of_another_policy_in_another_thread(harness, elsewhere):
    """Its op overrides hold there, and there alone."""
    if not harness.overrides_reach_run_op:
        pytest.skip("declared: op overrides act on the layers of prepared models alone")
    amp = session(harness, policy="mixed_bfloat16")
    kept = ua.Policy.parse("mixed_bfloat16").replace(op_overrides={harness.low_precision_op: "float32"})

    def seen(policy):
        with amp.autocast(policy=policy):
            return harness.run_op(harness.low_precision_op)

    assert [elsewhere(seen, policy) for policy in (kept, None)] == ["float32", "bfloat16"]
    assert [seen(policy) for policy in (None, kept)] == ["bfloat16", "float32"]


def test_a_thread_is_left_as_it_was_found(harness, elsewhere):
    def states():
        run = prepared(harness, "eager")
        before = settled_state(harness)
        train(run)
        with run.amp.inference():
            pass
        return before, harness.global_state()

    before, after = elsewhere(states)
    assert before == after


def test_two_threads_train_two_policies(harness):
    """Both begin each step together."""
    policies = ("float32", "mixed_bfloat16")
    expected = [train(prepared(harness, "eager", policy)) for policy in policies]
    runs = [prepared(harness, "eager", policy) for policy in policies]
    barrier = threading.Barrier(2, timeout=60)

    def in_step(run):
        for gradients in STEPS:
            barrier.wait()
            run.feed(*gradients)
        return run.weights(), run.scales, run.amp.applied_steps, run.amp.skipped_steps

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(in_step, runs, timeout=120)) == expected
