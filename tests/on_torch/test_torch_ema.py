"""Averages on torch move with applied steps, on the device, in captured steps too; against torch's own and numpy."""

import math

import pytest
import torch
from averages import BAD, SCALE, check, feed, values
from loops import batch, mlp, pretend_reads_sync, session
from tape import TapeCapturer

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp_torch.compiling.capture_context import CaptureContext
from unifiedamp_torch.compiling.captured_step import CapturedStep
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("scale", [SCALE, "none"])
def test_every_way_of_moving(mover, warmup, scale):
    amp = session(loss_scale=scale)
    model = mlp(norm=True)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05, fused=True))
    ema, oracle = amp.ema(model, 0.9, warmup=warmup), AverageOracle(0.9, warmup)
    for index, bad in enumerate(BAD):
        before = values(model)
        applied = feed(amp, model, optimizer, index, bad and scale is SCALE)
        if applied:
            oracle.step(before, values(model))
        check(ema.weights(), oracle.values)
        assert ema.updates == oracle.updates == amp.applied_steps


def test_a_skip_is_exact_also_of_weights_that_overflowed(mover):
    """What is not finite in a weight is none of a skipped step's business."""
    amp = session(loss_scale=SCALE)
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0, fused=True))
    ema = amp.ema(model, 0.5)
    for x in (1.0, 2.0):
        amp.backward(lambda x=x: model(torch.tensor([[x]])).sum(), optimizer)
        amp.step(optimizer)
    before = ema.weights()["weight"].tobytes()
    with torch.no_grad():
        model.weight.fill_(math.inf)
    amp.backward(lambda: model(torch.tensor([[math.nan]])).sum(), optimizer)
    assert not amp.step(optimizer).applied
    assert ema.weights()["weight"].tobytes() == before


def test_torchs_own_average(mover):
    """``AveragedModel``, which copies at its first update: ours begins from the weights before the first step."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    amp = session(loss_scale="none")
    model = mlp(norm=True)
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    ema = amp.ema(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(model)
    for index in range(5):
        assert feed(amp, model, optimizer, index, False)
        theirs.update_parameters(model)
    x, _ = batch()
    with ema.swapped():
        assert torch.allclose(model(x), theirs.module(x), rtol=1e-5, atol=1e-6)
    check(ema.weights(), {name: p.detach().numpy() for name, p in theirs.module.named_parameters()})


class Captured:
    """A step that a tape captures, as a CUDA graph would; amp.ema is called after ``before`` calls."""

    def __init__(self, monkeypatch, before, captured=True, **options):
        pretend_reads_sync(monkeypatch)
        self.amp = session(loss_scale=SCALE)
        model = mlp()
        self.model, self.optimizer = self.amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05, fused=True))
        self.step = self._captured(self._step) if captured else self._step
        for index in range(before):
            self.feed(index)
        self.ema = self.amp.ema(self.model, 0.8, **options)
        self.oracle = AverageOracle(0.8, **options)

    def _captured(self, step):
        backend = self.amp.backend
        self.stage, rates = TapeCapturer(), DeviceLearningRates(backend.device.native)
        context = CaptureContext(self.stage, rates, backend.compiler.steps, backend.spec, "cpu", backend.recorder)
        return CapturedStep(step, context, self.amp._loop.order, backend.compiler.must_run)

    def _step(self, x, y):
        with self.amp.autocast():
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
        with self.amp.scale_loss(loss, self.optimizer) as scaled:
            scaled.backward()
        self.amp.step(self.optimizer)
        return loss

    def feed(self, seed, bad=False):
        x, y = batch(seed)
        return self.step(x * math.inf if bad else x, y)

    def check_step(self, seed, bad):
        before = values(self.model)
        self.feed(seed, bad)
        if not bad:
            self.oracle.step(before, values(self.model))
        check(self.ema.weights(), self.oracle.values)
        assert self.ema.updates == self.oracle.updates


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("before", [0, 2, 3, 4, 6])
def test_captured_steps_move_it_whenever_it_was_made(monkeypatch, before, warmup):
    run = Captured(monkeypatch, before, warmup=warmup)
    for index, bad in enumerate(BAD + BAD):
        run.check_step(index, bad)
    assert getattr(run, "captured", run.step).graphs


def test_a_replay_moves_what_was_loaded_and_restarts(monkeypatch):
    run = Captured(monkeypatch, 0)
    for index in range(6):
        run.check_step(index, False)
    state = run.amp.state_dict()
    values_then, updates = dict(run.oracle.values), run.oracle.updates
    run.check_step(7, False)
    run.amp.load_state_dict(state)
    run.oracle.values, run.oracle.updates = values_then, updates
    for index in range(8):
        run.check_step(index, index == 2)
    with pytest.warns(ua.StateWarning, match="starts anew"):
        run.amp.load_state_dict({key: value for key, value in state.items() if key != "ema"})
    run.oracle = AverageOracle(0.8)
    for index in range(8):
        run.check_step(index, index == 0)


def test_a_replay_is_refused_while_swapped_in(monkeypatch):
    run = Captured(monkeypatch, 0)
    for index in range(6):
        run.check_step(index, False)
    with run.ema.swapped(), pytest.raises(ua.StepOrderError, match="swapped in"):
        run.amp._compiled.follow(run.step)(*batch(1))
    for index in range(6):
        run.check_step(index, False)
