"""A closed session refuses every call that works on models or steps; what it knows can be read."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=100)

CALLS = {
    "scope": lambda run: run.amp.scope(),
    "prepare": lambda run: run.amp.prepare(run.model, run.optimizer),
    "compile": lambda run: run.amp.compile(lambda: None),
    "autocast": lambda run: run.amp.autocast(),
    "inference": lambda run: run.amp.inference(run.model),
    "scale_loss": lambda run: run.amp.scale_loss(None, run.optimizer),
    "backward": lambda run: run.amp.backward(lambda: None, run.optimizer),
    "unscale": lambda run: run.amp.unscale(run.optimizer),
    "clip_grad_norm": lambda run: run.amp.clip_grad_norm(run.optimizer, 1.0),
    "clip_grad_value": lambda run: run.amp.clip_grad_value(run.optimizer, 1.0),
    "gradients": lambda run: run.amp.gradients(run.optimizer),
    "step": lambda run: run.amp.step(run.optimizer),
    "discard_step": lambda run: run.amp.discard_step(run.optimizer),
    "ema": lambda run: run.amp.ema(run.model),
    "load_state_dict": lambda run: run.amp.load_state_dict(run.amp.state_dict()),
    "observe": lambda run: run.amp.observe(object()),
    "record": lambda run: run.amp.record(print),
    "forecast": lambda run: run.amp.forecast(),
    "to_native": lambda run: run.amp.to_native(np.ones(1)),
    "prefetch": lambda run: run.amp.prefetch([]),
    "master_weights": lambda run: run.amp.master_weights(run.model),
    "load_master_weights": lambda run: run.amp.load_master_weights(run.model, {}),
    "convert_model": lambda run: run.amp.convert_model(run.model),
}


@pytest.fixture
def closed(harness):
    run = probe_run(harness, loss_scale=SCALE)
    run.feed(1.0)
    run.feed(float("inf"))
    run.amp.close()
    return run


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_closed_session(closed, call):
    with pytest.raises(ua.StepOrderError, match=rf"amp\.{call}: this session was closed by amp\.close\(\)"):
        CALLS[call](closed)


def test_a_step_of_a_closed_session(harness, form):
    run = probe_run(harness, form, loss_scale=SCALE)
    x = run.amp.to_native(np.ones(1, np.float32))
    for _ in range(3):  # traced, and replayed where that is what a compiled step does
        run.step(x)
    before = run.weights()
    run.amp.close()
    with pytest.raises(ua.StepOrderError, match=r"this session was closed by amp\.close\(\)"):
        run.step(x)
    assert run.weights() == before


def test_a_decorator_of_a_closed_session(harness):
    amp = session(harness)
    decorate = amp.compile(mode="default")
    amp.close()
    with pytest.raises(ua.StepOrderError, match=r"amp\.compile: this session was closed by amp\.close\(\)"):
        decorate(lambda: None)


def test_what_it_knows_can_be_read(closed):
    amp = closed.amp
    assert (amp.loss_scale, amp.applied_steps, amp.skipped_steps) == (4.0, 1, 1)
    assert amp.state_dict()["state"]["scale"] == 4.0
    assert amp.policy.compute_dtype == "float32"
    assert amp.capabilities.device
    assert str(amp.explain())


def test_its_state_loads_into_a_new_session(harness, closed):
    run = probe_run(harness, loss_scale=SCALE)
    run.amp.load_state_dict(closed.amp.state_dict())
    assert (run.amp.loss_scale, run.amp.applied_steps) == (4.0, 1)


def test_closing_is_idempotent(closed):
    closed.amp.close()
    closed.amp.close()
    assert closed.amp.loss_scale == 4.0


def test_what_it_trained_can_be_prepared_anew(harness, closed):
    amp = ua.Amp(harness.backend, "float32", loss_scale=SCALE)
    model, optimizer = amp.prepare(closed.model, closed.optimizer)
    before = closed.weights()
    x = amp.to_native(np.ones(1, np.float32))
    amp.backward(lambda: model(x), optimizer)
    assert amp.step(optimizer).applied
    assert closed.weights() == [pytest.approx(before[0] - 0.1)]
