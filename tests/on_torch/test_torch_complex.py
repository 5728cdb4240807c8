"""Complex parameters: trained under a scaler, clipped, recorded, saved; against plain torch."""

import numpy as np
import pytest
import torch
from loops import session

import unifiedamp as ua

START = [1 + 2j, -0.5 + 0.25j]


class Wave(torch.nn.Module):
    """A complex weight beside a real one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.complex64))
        self.gain = torch.nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        return (torch.view_as_real(self.weight * x) * self.gain).square().sum()


def inputs(bad=None):
    x = torch.tensor([0.3 - 0.1j, 0.2 + 0.7j])
    if bad is not None:
        x[0] = bad
    return x


def natively(steps, norm=None, value=None):
    model = Wave()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs()).backward()
        if norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        if value:
            torch.view_as_real(model.weight.grad).clamp_(-value, value)
            model.gain.grad.clamp_(-value, value)
        optimizer.step()
    return model


def trained(steps, norm=None, value=None, policy="float32", **options):
    amp = session(policy, loss_scale=ua.DynamicLossScale(initial_scale=1024.0), **options)
    model = Wave()
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    for _ in range(steps):
        amp.backward(lambda: model(inputs()), optimizer)
        if norm:
            amp.clip_grad_norm(optimizer, norm)
        if value:
            amp.clip_grad_value(optimizer, value)
        assert amp.step(optimizer).applied
    return amp, model, optimizer


@pytest.mark.parametrize("clip", [{}, {"norm": 0.1}, {"value": 0.05}])
def test_they_train_as_in_plain_torch(clip):
    wanted, (_, model, _) = natively(5, **clip), trained(5, **clip)
    torch.testing.assert_close(model.weight, wanted.weight)
    torch.testing.assert_close(model.gain, wanted.gain)


@pytest.mark.parametrize("bad", [complex(float("inf"), 0), complex(0, float("inf")), complex(0, float("nan"))])
def test_an_overflow_of_either_part_skips_the_step(bad):
    amp, model, optimizer = trained(1)
    before = model.weight.detach().clone()
    amp.backward(lambda: model(inputs(bad)), optimizer)
    assert not amp.step(optimizer).applied
    assert torch.equal(model.weight, before)
    assert amp.loss_scale == 512.0


def test_they_are_saved_and_loaded_without_loss():
    amp, model, _ = trained(3)
    saved = amp.master_weights(model)
    assert saved["weight"].dtype == np.complex64
    assert saved["weight"].tolist() == model.weight.tolist()
    assert saved["gain"].dtype == np.float32
    other = Wave()
    other_amp = session()
    other_amp.prepare(other)
    other_amp.load_master_weights(other, saved)
    assert torch.equal(other.weight, model.weight)
    with pytest.raises(ua.CheckpointError, match="'gain' has shape"):
        other_amp.load_master_weights(other, {**saved, "gain": saved["gain"] * 1j})
    assert torch.equal(other.gain, model.gain)


def test_they_train_beside_master_weights():
    _, model, _ = trained(3, policy="float16", master_weights=True)
    assert model.weight.dtype is torch.complex64
    assert (model.weight - natively(3).weight).abs().max() < 2e-2


def test_their_gradients_are_recorded():
    records = []
    amp, model, optimizer = trained(1)
    with amp.record(records.append, every=1):
        amp.backward(lambda: model(inputs()), optimizer)
        amp.step(optimizer)
    assert "'weight'" in str(records)


def test_lazily_conjugated_gradients_are_unscaled():
    """torch's own Adam fails on them, its scaler too."""
    amp = session(loss_scale=1024.0)
    model = Wave()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    amp.backward(lambda: torch.view_as_real(model.weight.conj() * inputs()).sum() + 0 * model.gain.sum(), optimizer)
    wanted = Wave()
    torch.view_as_real(wanted.weight.conj() * inputs()).sum().backward()
    expected = wanted.weight.detach() - 0.1 * wanted.weight.grad.resolve_conj()
    assert amp.step(optimizer).applied
    torch.testing.assert_close(model.weight.detach(), expected)


@pytest.mark.parametrize("scale", ["none", 4.0])
def test_a_complex_loss_is_refused(scale):
    amp = session(loss_scale=scale)
    model = torch.nn.Linear(2, 1)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ua.LossError, match=r"the loss is complex64.*loss\.real"):
        amp.backward(lambda: model(torch.ones(1, 2)).sum() * 1j, optimizer)
    amp.backward(lambda: (model(torch.ones(1, 2)).sum() * 1j).abs(), optimizer)
    assert amp.step(optimizer).applied
