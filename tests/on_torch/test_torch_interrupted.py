"""Interruptions on torch: master weights, optimizers' state, captured steps, what holds for the whole process."""

import contextlib
import copy
import signal

import numpy as np
import pytest
import torch
from loops import batch, make_step, mlp, pretend_reads_sync, session, weights
from test_torch_capture import WARM_UP, Trained

import unifiedamp as ua
from unifiedamp_torch.compiling.compile import ready_dynamo
from unifiedamp_torch.precision.autocast import recomputing
from unifiedamp_torch.precision.thread_state import entered, nesting
from unifiedamp_torch.training import native_calls
from unifiedamp_torch.training.compiled_update import Updates
from unifiedamp_torch.training.scaled_steps import ScaledSteps

SCALE = ua.DynamicLossScale(initial_scale=1024.0)


class Interrupted(BaseException):
    """Raised by the tests."""


def process_wide():
    return (
        recomputing.overrides, set(native_calls.passes.running), native_calls._stepping.optimizer, len(entered.stack),
        torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), nesting(),
    )  # fmt: skip


def trained(policy="float16", make=torch.optim.AdamW, **options):
    amp = session(policy, loss_scale=SCALE, master_weights=True, **options)
    model = mlp()
    model, optimizer = amp.prepare(model, make(model.parameters(), lr=0.01))
    return amp, model, optimizer, make_step(amp, model, optimizer, clip=1.0)


def masters(optimizer):
    return [param.detach().clone() for group in optimizer.param_groups for param in group["params"]]


def assert_published(model, optimizer):
    for low, master in zip(model.parameters(), masters(optimizer), strict=True):
        assert torch.equal(low, master.to(low.dtype))


def test_masters_that_were_updated_reach_the_model(monkeypatch):
    amp, model, optimizer, step = trained()
    step(*batch(0))
    before, real = masters(optimizer), ScaledSteps.step

    def interrupted(self, *args):
        real(self, *args)
        raise Interrupted

    monkeypatch.setattr(ScaledSteps, "step", interrupted)
    with pytest.raises(Interrupted):
        step(*batch(1))
    monkeypatch.undo()
    assert not torch.equal(before[0], masters(optimizer)[0])
    assert_published(model, optimizer)
    kept = masters(optimizer)
    amp.backward(lambda: model(batch(2)[0]).sum() * 0, optimizer)
    assert all(torch.equal(one, other) for one, other in zip(kept, masters(optimizer), strict=True))
    amp.discard_step(optimizer)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_update_that_had_not_begun_is_no_partly_applied_one(compiled):
    """As where memory runs out for the optimizer's state: nothing is refused."""
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters()))
    step = make_step(amp, model, optimizer)
    step = amp.compile(step) if compiled else step
    step(*batch(0))

    def fails(*_):
        raise torch.OutOfMemoryError

    hook, before = optimizer.register_step_pre_hook(fails), weights(model)
    with pytest.raises(torch.OutOfMemoryError):
        step(*batch(1))
    hook.remove()
    assert all(torch.equal(one, other) for one, other in zip(before, weights(model), strict=True))
    assert all(param.grad is None for param in model.parameters())
    step(*batch(1))
    assert amp.applied_steps == 2


def test_an_update_that_was_interrupted_in_the_kernel_is_refused(monkeypatch):
    pretend_reads_sync(monkeypatch)
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
    step = make_step(amp, model, optimizer)
    step(*batch(0))

    def fails(*_):
        raise Interrupted

    hook = optimizer.register_step_post_hook(fails)
    with pytest.raises(Interrupted):
        step(*batch(1))
    hook.remove()
    assert not hasattr(optimizer, "found_inf")
    with pytest.raises(ua.StepOrderError, match=r"interrupted by Interrupted .* amp.discard_step"):
        step(*batch(2))
    amp.discard_step(optimizer)
    step(*batch(2))


def test_a_compiled_update_that_was_interrupted_is_refused(monkeypatch):
    ready_dynamo()
    pretend_reads_sync(monkeypatch)
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=True))
    step, steps = make_step(amp, model, optimizer), amp.backend.compiler.steps.steps
    step(*batch(0))
    updates = Updates()
    steps.use_updates(updates)
    step(*batch(1))

    def fails(_found):
        with torch.no_grad():
            model[0].weight.add_(1.0)
        raise Interrupted

    monkeypatch.setattr(updates.of(optimizer), "_step", fails)
    with pytest.raises(Interrupted):
        step(*batch(2))
    with pytest.raises(ua.StepOrderError, match=r"amp\.discard_step"):
        step(*batch(2))


@pytest.mark.parametrize("call", [1, WARM_UP + 1, WARM_UP + 3], ids=["warming up", "capturing", "replayed"])
def test_a_captured_step(monkeypatch, call):
    """Interrupted in its call number ``call``: that step is applied whole or not at all, and the others as ever."""
    runs = [Trained(monkeypatch, captured) for captured in (False, True)]
    run = runs[1]
    captured, calls = run.amp._compiled.follow(run.step), []
    real = torch.optim.AdamW.step

    def interrupted(self, *args, **kwargs):
        real(self, *args, **kwargs)
        if len(calls) == call and self is run.optimizer and not wanted:
            raise Interrupted

    wanted = []
    for index in range(1, 12):
        calls.append(index)
        before = weights(run.model)
        if index == call:
            monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
        run.step = captured
        try:
            run.feed(index)
            runs[0].feed(index)
        except Interrupted:
            monkeypatch.setattr(torch.optim.AdamW, "step", real)
            wanted.append(index)
            if call == 1:
                run.amp.discard_step(run.optimizer)
            else:
                assert all(torch.equal(one, other) for one, other in zip(before, weights(run.model), strict=True))
            runs[0].model.load_state_dict(run.model.state_dict())
            runs[0].optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    assert wanted or call > WARM_UP + 1  # a replay runs no Python
    for one, other in zip(weights(runs[0].model), weights(run.model), strict=True):
        torch.testing.assert_close(one, other)
    assert run.amp.backend.compiler.tracing() is False
    assert [group["fused"] for group in run.optimizer.param_groups] == [True]
    assert not torch.is_tensor(run.optimizer.param_groups[0]["lr"])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no interval timers")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_signals_while_master_weights_are_trained(accumulate):
    """The model keeps holding its masters' values, and each optimizer state its parameter's."""
    amp, model, optimizer, step = trained(accumulate_steps=accumulate)
    for index in range(accumulate):
        step(*batch(index))
    found, struck = process_wide(), 0

    def strike(*_):
        raise Interrupted

    handler, rng = signal.signal(signal.SIGALRM, strike), np.random.default_rng(3)
    try:
        for turn in range(150):
            x, y = batch(turn)
            try:
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-5, 4e-3)))
                amp.backward(lambda x=x, y=y: torch.nn.functional.cross_entropy(model(x).float(), y), optimizer)
                amp.clip_grad_norm(optimizer, 1.0)
                amp.step(optimizer)
                signal.setitimer(signal.ITIMER_REAL, 0)  # inside: a late signal must not come after the handler
            except Interrupted:
                struck += 1
                amp.discard_step(optimizer)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert_published(model, optimizer)
            assert process_wide() == found
            params = [param for group in optimizer.param_groups for param in group["params"]]
            assert {id(param) for param in optimizer.state} == {id(param) for param in params}
            assert amp.backend.interop.scaler.get_scale() == amp.loss_scale == 1024.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert struck


def test_a_compiled_step_that_is_interrupted_leaves_no_region_open():
    """A signal in the code that dynamo makes of ``with amp.autocast()`` does; native loops would train on old casts."""
    amp, model = session("mixed_bfloat16"), mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    interrupts = [False]

    @torch.compiler.disable
    def interrupt():
        if interrupts[0]:
            torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, True)
            torch.set_grad_enabled(False)
            raise Interrupted

    @amp.compile
    def step(x, y):
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y)
        interrupt()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)

    for index in range(4):
        found = process_wide()
        interrupts[0] = index % 2 == 1
        with pytest.raises(Interrupted) if interrupts[0] else contextlib.nullcontext():
            step(*batch(index))
        assert process_wide() == found
        amp.discard_step(optimizer)


def test_a_compiled_step_that_fails_leaves_gradients_on():
    """The session's last call ran under ``no_grad``; the step fails outside of it."""
    amp, model = session("mixed_bfloat16"), mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @torch.compiler.disable
    def fail():
        raise KeyError("outside")

    @amp.compile
    def step(x, y):
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        with torch.no_grad():
            amp.clip_grad_norm(optimizer, 1.0)
        fail()

    with pytest.raises(KeyError):
        step(*batch(0))
    assert torch.is_grad_enabled()


def test_steps_in_hooks_of_a_backward_pass_and_one_that_fails_leave_gradients_on():
    """An optimizer for each parameter, stepped as soon as its gradient is there, where torch records none."""
    amp, model, other = session(loss_scale=64.0), mlp(), mlp()
    optimizers = {param: torch.optim.SGD([param], lr=0.1) for param in model.parameters()}
    amp.prepare(model, *optimizers.values())

    def end(param):
        amp.step(optimizers[param])
        if amp.applied_steps == 6:
            raise Interrupted

    hooks = [param.register_post_accumulate_grad_hook(end) for param in model.parameters()]
    x, _ = batch()
    amp.backward(lambda: model(x).square().mean(), list(optimizers.values()))
    other(x).square().mean().backward()
    for param, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(param, expected - 0.1 * expected.grad)
    found = process_wide()
    with pytest.raises(Interrupted):
        amp.backward(lambda: model(x).square().mean(), list(optimizers.values()))
    assert process_wide() == found
    for hook in hooks:  # Python cannot collect what they refer to
        hook.remove()
