"""Averages of all kinds of parameters: complex, tied, frozen, added later, in 16 bits."""

import math

import numpy as np
import pytest
import torch
from averages import SCALE, check, feed, values
from loops import batch, mlp, session

from unifiedamp.conformance.averages import AverageOracle


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
