"""A ``torch.amp.GradScaler`` that was left in a loop beside the session: it would scale, or unscale, a second time."""

import inspect

import pytest
import torch
from loops import batch, mlp, session, weights
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import unifiedamp as ua
from unifiedamp_torch import patches

IMPORTED = {"norm": clip_grad_norm_, "value": clip_grad_value_}
"""As scripts import them, before there is a session."""


@pytest.fixture(params=["float32", "bfloat16"])
def loop(request):
    """A session, its model and optimizer, a loss that is computed, and a native scaler; under a loss scale or none."""
    scale = 64.0 if request.param == "float32" else "none"
    amp, model = session(request.param, loss_scale=scale), mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = batch()
    yield amp, model, optimizer, lambda: cross_entropy(model(x).float(), y), torch.amp.GradScaler("cpu", 8.0)
    amp.close()


@pytest.mark.parametrize("change", [lambda loss: loss, lambda loss: loss / 4, lambda loss: loss.view(1).mean()])
def test_a_loss_that_it_scaled_is_refused(loop, change):
    amp, model, optimizer, loss, scaler = loop
    before = weights(model)
    with amp.autocast():
        scaled = change(scaler.scale(loss()))
    with pytest.raises(ua.LossError, match="a torch.amp.GradScaler has scaled this loss already"):
        amp.scale_loss(scaled, optimizer)
    assert all(map(torch.equal, weights(model), before))
    amp.backward(loss, optimizer)
    assert amp.step(optimizer).applied


@pytest.mark.parametrize("outputs", [lambda value: value, lambda value: [value / 2], lambda value: iter([value])])
def test_it_does_not_scale_a_loss_of_the_session(loop, outputs):
    amp, _, optimizer, loss, scaler = loop
    with amp.autocast():
        found = loss()
    with amp.scale_loss(found, optimizer) as scaled_loss:
        if amp.loss_scale > 1:
            with pytest.raises(ua.StepOrderError, match="GradScaler.scale: amp.scale_loss has scaled this loss"):
                scaler.scale(outputs(scaled_loss.value))
        scaled_loss.value.backward()
    assert amp.step(optimizer).applied


def test_losses_that_it_scaled_together_are_refused(loop):
    amp, _, optimizer, loss, scaler = loop
    with amp.autocast():
        first, _ = scaler.scale((loss(), loss()))
    with pytest.raises(ua.LossError, match="a torch.amp.GradScaler has scaled this loss already"):
        amp.scale_loss(first, optimizer)


@pytest.mark.parametrize("call", ["unscale_", "step"])
def test_its_calls_on_the_sessions_gradients_are_refused(loop, call):
    amp, model, optimizer, loss, scaler = loop
    scaler.scale(torch.ones(()))
    amp.backward(loss, optimizer)
    before = [param.grad.clone() for param in model.parameters()]
    with pytest.raises(ua.StepOrderError, match=r"GradScaler.unscale_\(SGD\).*leave the GradScaler out"):
        getattr(scaler, call)(optimizer)
    assert all(torch.equal(param.grad, grad) for param, grad in zip(model.parameters(), before, strict=True))
    assert amp.step(optimizer).applied


def test_a_disabled_one_and_those_of_other_loops_work(loop):
    amp, _, optimizer, loss, scaler = loop
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    amp.backward(lambda: disabled.scale(loss()), optimizer)
    assert amp.step(optimizer).applied
    other = mlp()
    native = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler.scale(other(batch()[0]).square().mean()).backward()
    assert scaler.unscale_(native) is None
    scaler.step(native)
    scaler.update()


def test_torchs_class_is_as_it_was_when_sessions_are_closed(monkeypatch):
    monkeypatch.setattr(patches, "_watched", patches._Watched())  # sessions of other tests may be open
    for name in ("scale", "unscale_"):
        monkeypatch.setattr(torch.amp.GradScaler, name, inspect.unwrap(getattr(torch.amp.GradScaler, name)))
    before, clips = dict(vars(torch.amp.GradScaler)), [_called(each) for each in IMPORTED.values()]
    first, second = session(loss_scale=4.0), session(loss_scale=4.0)
    for amp in (first, second):
        model = mlp()
        amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    first.close()
    assert dict(vars(torch.amp.GradScaler)) != before
    assert [_called(each) for each in IMPORTED.values()] != clips
    second.close()
    assert dict(vars(torch.amp.GradScaler)) == before
    assert [_called(each) for each in IMPORTED.values()] == clips


def _called(function):
    """What one of torch's functions calls under ``no_grad``."""
    return inspect.getclosurevars(function).nonlocals["func"]


CLIPS = {"norm": ("clip_grad_norm_", 0.01), "value": ("clip_grad_value_", 0.001)}


@pytest.mark.parametrize("clip", CLIPS)
def test_clipping_scaled_gradients_by_torch_is_refused_and_true_ones_are_clipped(loop, clip):
    amp, model, optimizer, loss, _ = loop
    name, limit = CLIPS[clip]
    amp.backward(loss, optimizer)
    if amp.loss_scale > 1:
        functions = [IMPORTED[clip], getattr(torch.nn.utils, name), getattr(torch.nn.utils.clip_grad, name)]
        if clip == "norm" and hasattr(torch.nn.utils, "clip_grads_with_norm_"):
            functions.append(lambda params, norm: torch.nn.utils.clip_grads_with_norm_(params, norm, torch.tensor(9.0)))
        for function in functions:
            with pytest.raises(ua.StepOrderError, match=rf"gradients of this SGD are.*call amp.clip_grad_{clip}\("):
                function(model.parameters(), limit)
    amp.unscale(optimizer)
    getattr(torch.nn.utils, name)(model.parameters(), limit)
    largest = torch.cat([param.grad.flatten() for param in model.parameters()]).norm(
        2.0 if clip == "norm" else torch.inf
    )
    torch.testing.assert_close(float(largest), limit, rtol=0.01, atol=0)
    assert amp.step(optimizer).applied
