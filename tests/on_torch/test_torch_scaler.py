"""The scaler is a torch.amp.GradScaler, and its form on a device equals the reference step for step."""

import random

import pytest
import torch
from loops import batch, make_step, mlp, pretend_reads_sync, session, weights

import unifiedamp as ua
from unifiedamp_torch.training.scale_state import DeviceScale, Found, HostScale
from unifiedamp_torch.training.scaler import Scaler

SETTINGS = [
    ua.DynamicLossScale(initial_scale=4.0, growth_interval=3),
    ua.DynamicLossScale(initial_scale=4.0, growth_interval=1, min_scale=0.5, max_scale=10.0),
    ua.DynamicLossScale(initial_scale=3.0, growth_factor=1.1, backoff_factor=0.3, growth_interval=2),
    ua.DynamicLossScale(initial_scale=4.0, growth_interval=2, hysteresis=3, growth_factor=1.7, backoff_factor=0.7),
    ua.DynamicLossScale(initial_scale=64.0, growth_interval=2, hysteresis=3, hysteresis_reset="growth"),
    ua.DynamicLossScale(initial_scale=2.0**126, growth_interval=1, max_scale=3.0e38, growth_factor=3.0),
    ua.StaticLossScale(128.0),
]


@pytest.fixture
def waiting(monkeypatch):
    """A device that has to be waited for; what is read from it is counted."""
    pretend_reads_sync(monkeypatch)
    reads = []
    real = torch.Tensor.item

    def item(self):
        reads.append(self.shape)
        return real(self)

    monkeypatch.setattr(torch.Tensor, "item", item)
    return reads


@pytest.mark.parametrize("state_class", [DeviceScale, HostScale])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_state_moves_as_the_reference(state_class, settings):
    rng = random.Random(5)
    scale = torch.tensor(settings.first_scale, dtype=torch.float32)
    state = state_class(settings, scale, torch.zeros((), dtype=torch.int32))
    wanted = settings.initial_state()
    for _ in range(300):
        found_inf = rng.random() < 0.4
        counted = torch.tensor([1.0, float(found_inf)])
        found = Found(counted, counted[1])
        state.count(found)
        state.update([found])
        wanted = settings.next_state(wanted, found_inf)
        read = state.read()
        assert (read.scale, read.good_steps, read.bad_steps) == (wanted.scale, wanted.good_steps, wanted.bad_steps)
        assert read.hysteresis_steps == wanted.hysteresis_steps
        assert scale.item() == wanted.scale
    assert read.applied_steps + read.skipped_steps == 300


def test_it_is_a_grad_scaler_and_enabled_on_the_cpu():
    amp = session(loss_scale="dynamic")
    scaler = amp.backend.interop.scaler
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler.is_enabled()
    assert scaler.get_scale() == 2.0**16
    assert session().backend.interop.scaler is None


def test_native_calls_drive_it():
    """A loop written for GradScaler, bounds and hysteresis included."""
    scaler = Scaler(torch.device("cpu"), ua.DynamicLossScale(initial_scale=4.0, min_scale=2.0), True)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for gradient in (1.0, float("inf"), float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.item() == pytest.approx(0.8)
    assert scaler.get_scale() == 2.0
    saved = scaler.state_dict()
    assert (saved["scale"], saved["_growth_tracker"]) == (2.0, 1)
    scaler.load_state_dict({"scale": 8.0, "_growth_tracker": 5})
    assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (8.0, 5)
    read = scaler.state.read()
    assert (read.scale, read.good_steps) == (8.0, 5)


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_equals_unfused_without_reading_the_device(waiting, make, clip):
    models = [mlp(), mlp()]
    momentum = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizers = [make(m.parameters(), lr=0.1, fused=i == 1, **momentum) for i, m in enumerate(models)]
    states = []
    for model, optimizer in zip(models, optimizers, strict=True):
        amp = session(loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=2, max_consecutive_skips=10**6))
        model, optimizer = amp.prepare(model, optimizer)
        step = make_step(amp, model, optimizer, clip)
        per_step = []
        for seed, bad in enumerate((True, False, False, True, False, True, False)):
            x, y = batch(seed)
            if bad:
                x[0, 0] = float("inf")
            before = len(waiting)
            step(x, y)
            per_step.append(len(waiting) - before)
        states.append(amp.state_dict()["state"])
        if optimizer.defaults["fused"]:
            # The first applied step is looked at, none after it.
            assert per_step[2:] == [0] * 5
    assert states[0] == states[1]
    assert states[0]["applied_steps"] == 4
    for a, b in zip(weights(models[0]), weights(models[1]), strict=True):
        assert torch.isfinite(b).all()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def run_of_groups(of_groups, **options):
    """Return the weights after a skipped step among others; layers are groups with this ``fused``, "" the default."""
    model = mlp()
    groups = [
        {"params": layer.parameters()} | ({} if each == "" else {"fused": each})
        for layer, each in zip([each for each in model if [*each.parameters()]], of_groups, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, **options)
    amp = session(loss_scale=ua.DynamicLossScale(initial_scale=4.0))
    model, optimizer = amp.prepare(model, optimizer)
    step = make_step(amp, model, optimizer, None)
    for seed in range(4):
        x, y = batch(seed)
        x[0, 0] = float("inf") if seed == 2 else x[0, 0]
        step(x, y)
    assert (amp.applied_steps, amp.skipped_steps) == (3, 1)
    return weights(model)


@pytest.mark.usefixtures("waiting")
def test_groups_that_are_not_fused_skip_too():
    wanted = run_of_groups(("", ""))
    for found in (
        run_of_groups((True, "")),
        run_of_groups(("", False), fused=True),
        run_of_groups(("", ""), fused=True),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_results_on_a_device_are_right_when_read_later(waiting):
    amp = session(loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=1))
    weight = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = amp.prepare(weight, torch.optim.SGD(weight.parameters(), lr=0.1))
    results = []
    for x in (1.0, float("nan"), 1.0):
        amp.backward(lambda x=x: model(torch.full((1, 1), x)).sum(), optimizer)
        results.append(amp.step(optimizer))
    assert [tuple(result.values) for result in results] == [
        (True, False, "applied", 4.0, 8.0),
        (False, True, "non_finite", 8.0, 4.0),
        (True, False, "applied", 4.0, 8.0),
    ]


def test_exhaustion_is_reported_with_a_fused_optimizer(waiting):
    amp = session(loss_scale=ua.DynamicLossScale(max_consecutive_skips=3))
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
    step = make_step(amp, model, optimizer)
    x, y = batch()
    step(x, y)
    x[:] = float("inf")
    with pytest.raises(ua.LossScaleExhausted, match="the loss itself was already inf or nan") as caught:
        for _ in range(60):
            step(x, y)
    assert caught.value.tensors[0] == "0.weight"


def test_sparse_gradients_are_checked_and_cannot_be_clipped():
    amp = session(loss_scale=4.0)
    model = torch.nn.Embedding(5, 2, sparse=True)
    before = model.weight.detach().clone()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rows = torch.tensor([1, 1, 3])
    amp.backward(lambda: model(rows).sum(), optimizer)
    assert amp.step(optimizer).applied
    moved = before - model.weight.detach()
    torch.testing.assert_close(moved, torch.tensor([[0.0] * 2, [2.0] * 2, [0.0] * 2, [1.0] * 2, [0.0] * 2]))
    amp.backward(lambda: (model(rows) * float("inf")).sum(), optimizer)
    assert not amp.step(optimizer).applied
    amp.backward(lambda: model(rows).sum(), optimizer)
    with pytest.raises(ua.UnsupportedError, match="sparse"):
        amp.clip_grad_norm(optimizer, 1.0)


def test_a_scheduler_after_a_skipped_first_step_brings_no_warning(recwarn):
    amp = session(loss_scale="dynamic")
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    for x in (float("inf"), 1.0, float("inf"), 1.0):
        amp.backward(lambda x=x: model(torch.full((1, 1), x)).sum(), optimizer)
        amp.step(optimizer, scheduler)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 0.5, 0.5, 0.25]
    assert [w for w in recwarn if "lr_scheduler" in str(w.message)] == []


def test_scaled_values_of_a_window_may_be_differentiated_by_hand():
    amp, model = session(loss_scale=8.0, accumulate_steps=2), torch.nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for value in (1.0, 3.0):
        with amp.autocast():
            loss = model(torch.full((1, 1), value)).sum()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            torch.autograd.backward(scaled_loss.value)
        amp.step(optimizer)
    assert model.weight.item() == pytest.approx(before - 0.5 * 2.0)
