"""Averages on torch: on the device, in captured steps, of all kinds of parameters; against torch's own and numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from loops import batch, mlp, pretend_reads_sync, session
from tape import TapeCapturer

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp_torch.compiling.capture_context import CaptureContext
from unifiedamp_torch.compiling.captured_step import CapturedStep
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates
from unifiedamp_torch.device import kinds

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
BAD = (False, False, True, False, True, True, False, False, False)


@pytest.fixture(params=["host", "selection", "kernel"])
def mover(request, monkeypatch):
    """How averages move: on the host's decision, by selection on the device, or by the fused kernel."""
    if request.param != "host":
        pretend_reads_sync(monkeypatch)
        fused = request.param == "kernel"
        monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], fused_sgd=fused))
    return request.param


def values(model):
    return {name: param.detach().numpy().copy() for name, param in model.named_parameters()}


def feed(amp, model, optimizer, index, bad):
    x, y = batch(index)
    x = torch.where(torch.tensor(bad), x * math.inf, x)
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    return amp.step(optimizer).applied


def check(found, expected, rtol=3e-6):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-7, err_msg=name)


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


# -- captured steps ----------------------------------------------------------------------------------------------------


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
        context = CaptureContext(self.stage, rates, backend.compiler.steps, backend.spec, "cpu")
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
    assert run.step.graphs


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


# -- parameters of all kinds -------------------------------------------------------------------------------------------


class Wave(torch.nn.Module):
    """A complex weight, a float64 one and a real one."""

    def __init__(self):
        super().__init__()
        self.wave = torch.nn.Parameter(torch.tensor([1 + 2j, -0.5 + 0.25j], dtype=torch.complex64))
        self.wide = torch.nn.Parameter(torch.tensor([0.25], dtype=torch.float64))
        self.gain = torch.nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        return (torch.view_as_real(self.wave * x) * self.gain).square().sum() * self.wide.float().sum()


def test_complex_and_float64_weights(mover):
    amp = session(loss_scale=SCALE)
    model = Wave()
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    ema, oracle = amp.ema(model, 0.75), AverageOracle(0.75)
    for index in range(5):
        before = values(model)
        x = torch.tensor([0.3 - 0.1j, 0.2 + 0.7j]) * (math.inf if index == 2 else 1.0)
        amp.backward(lambda x=x: model(x), optimizer)
        if amp.step(optimizer).applied:
            for name, value in values(model).items():
                start = oracle.values.get(name, before[name])
                oracle.values[name] = 0.75 * np.complex128(start) + 0.25 * np.complex128(value)
    found = ema.weights()
    assert [found[name].dtype.name for name in ("wave", "wide", "gain")] == ["complex64", "float32", "float32"]
    check(found, oracle.values)
    state = amp.state_dict()
    own = values(model)
    with ema.swapped():
        check(values(model), found)
        assert model.wide.dtype is torch.float64
    assert all(np.array_equal(value, own[name]) for name, value in values(model).items())
    amp.load_state_dict(state)
    assert all(np.array_equal(value, found[name]) for name, value in ema.weights().items())


class Tied(torch.nn.Module):
    """An embedding and a head that share their weight, a batch norm with its counter, a frozen layer."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, rows):
        return self.head(self.frozen(self.norm(self.embed(rows))))


def test_tied_frozen_and_counted(mover):
    amp = session(loss_scale=SCALE)
    model = Tied()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    rows = torch.arange(5)
    for _ in range(3):
        before = values(model)
        amp.backward(lambda: torch.nn.functional.cross_entropy(model(rows), rows), optimizer)
        assert amp.step(optimizer).applied
        oracle.step(before, values(model))
    found, own = ema.weights(), amp.master_weights(model)
    assert found.keys() == own.keys()
    assert np.array_equal(found["head.weight"], found["embed.weight"])
    check(found, oracle.values)
    for name in ("frozen.weight", "norm.running_mean"):
        np.testing.assert_allclose(found[name], own[name], rtol=1e-6)
    with ema.swapped():
        assert model.head.weight is model.embed.weight
        assert int(model.norm.num_batches_tracked) == 3
    amp.load_state_dict(amp.state_dict())
    check(ema.weights(), oracle.values)


def test_a_part_of_a_model(mover):
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema, oracle = amp.ema(model[0], 0.5), AverageOracle(0.5)
    for index in range(3):
        before = values(model[0])
        feed(amp, model, optimizer, index, False)
        oracle.step(before, values(model[0]))
    assert set(ema.weights()) == {"weight", "bias"}
    check(ema.weights(), oracle.values)
    other = values(model[3])
    with ema.swapped():
        assert all(np.array_equal(value, other[name]) for name, value in values(model[3]).items())


def test_two_optimizers_of_one_model(mover):
    """Each weight's average moves with the applied steps of the optimizer that trains it."""
    amp = session(loss_scale=SCALE)
    model = mlp()
    body, head = torch.optim.SGD(model[0].parameters(), lr=0.5), torch.optim.SGD(model[3].parameters(), lr=0.5)
    model, body, head = amp.prepare(model, body, head)
    ema = amp.ema(model, 0.5)
    oracles = {"0": AverageOracle(0.5), "3": AverageOracle(0.5)}
    x, y = batch()
    for optimizer, part in ((body, "0"), (body, "0"), (head, "3"), (body, "0")):
        before = values(model)
        amp.backward(lambda: torch.nn.functional.cross_entropy(model(x), y), optimizer)
        assert amp.step(optimizer).applied
        mine = [name for name in before if name.startswith(part)]
        after = values(model)
        oracles[part].step({name: before[name] for name in mine}, {name: after[name] for name in mine})
        for oracle in oracles.values():
            check(ema.weights(), oracle.values)
    assert amp.state_dict()["ema"][0]["updates"] == [3, 1]
    amp.load_state_dict(amp.state_dict())
    assert ema.updates == 3


def test_a_layer_that_the_model_gets_later(mover):
    """Its average begins from its weights before its first step."""
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    for index in range(5):
        if index == 2:
            model.append(torch.nn.Linear(4, 4))
            optimizer.add_param_group({"params": list(model[4].parameters())})
        before = values(model)
        if feed(amp, model, optimizer, index, index == 3):
            oracle.step(before, values(model))
        check(ema.weights(), oracle.values)
    assert "4.weight" in ema.weights()


def test_a_change_of_the_memory_layout(mover):
    amp = session(loss_scale=SCALE)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for index in range(4):
        if index == 2:
            model.to(memory_format=torch.channels_last)
        before = values(model)
        amp.backward(lambda: model(x).square().mean(), optimizer)
        assert amp.step(optimizer).applied
        oracle.step(before, values(model))
        check(ema.weights(), oracle.values)


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_a_16_bit_layer_that_is_unfrozen_later(mover, policy):
    """Its average follows its master, which it gets then."""
    amp = session(policy, master_weights=True, loss_scale=SCALE)
    model = mlp()
    model[0].requires_grad_(False)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.125))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    for index in range(5):
        model[0].requires_grad_(index >= 2)
        before = amp.master_weights(model)
        assert feed(amp, model, optimizer, index, False)
        oracle.step(before, amp.master_weights(model))
        check(ema.weights(), oracle.values)


# -- beside the session's calls ----------------------------------------------------------------------------------------


def test_steps_of_torchs_own_form_move_it(mover):
    from unifiedamp.compat.torch_cuda_amp import GradScaler

    scaler = GradScaler(init_scale=4.0)
    amp = session(loss_scale=SCALE)
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    scaler = amp.backend.interop.scaler
    for x in (1.0, math.inf, 2.0, 1.0):
        before = values(model)
        scaler.scale(model(torch.tensor([[x]])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if math.isfinite(x):
            oracle.step(before, values(model))
        check(ema.weights(), oracle.values)
    with ema.swapped():
        scaler.scale(model(torch.tensor([[1.0]])).sum()).backward()
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            scaler.step(optimizer)
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def test_swapping_inside_a_region_forgets_the_casts_in_its_cache():
    amp = session("mixed_bfloat16")
    model = torch.nn.Linear(4, 4)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=8.0))
    ema = amp.ema(model, 0.5)
    x = torch.ones(2, 4)
    for _ in range(2):
        amp.backward(lambda: model(x).float().square().sum(), optimizer)
        assert amp.step(optimizer).applied
    with amp.autocast():
        own = model(x)
        with ema.swapped():
            averaged = model(x)
        again = model(x)
    assert torch.equal(own, again)
    assert not torch.equal(own, averaged)


def test_made_in_inference_mode():
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    with torch.inference_mode():
        ema = amp.ema(model, 0.5)
    own = None
    for index in range(2):
        feed(amp, model, optimizer, index, False)
        own = values(model)
        with torch.inference_mode(), ema.swapped():
            model(batch()[0])
        assert all(np.array_equal(value, own[name]) for name, value in values(model).items())


def test_a_closed_session_leaves_nothing_on_optimizers():
    amp = session(loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    ema = amp.ema(model, 0.5)
    feed(amp, model, optimizer, 0, False)
    with ema.swapped():
        pass
    amp.close()
    assert not optimizer._optimizer_step_pre_hooks
