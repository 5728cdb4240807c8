"""Delayed scaling on torch: what a dropped iteration and a loaded state leave of the iteration in progress."""

import math

import pytest
import torch
from loops import session
from test_torch_float8_delayed import POLICY, SIZE, ranged

import unifiedamp as ua
from unifiedamp_torch.precision.float8_scales import DelayedScaling


class TwoOptimizers:
    """Two linear layers, each with an optimizer, under a loss scale."""

    def __init__(self):
        self.amp = session(POLICY, loss_scale=ua.DynamicLossScale(initial_scale=4.0))
        layers = [torch.nn.Linear(SIZE, SIZE) for _ in range(2)]
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in layers]
        prepared = self.amp.prepare(*layers, *optimizers)
        self.layers, self.optimizers = prepared[:2], prepared[2:]

    def backward(self, largest, seed, bad=False):
        x = ranged(largest, seed)
        if bad:
            x[1, 1] = math.inf
        for layer, optimizer in zip(self.layers, self.optimizers, strict=True):
            with self.amp.autocast():
                loss = layer(x).sum()
            with self.amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()

    def step(self):
        for optimizer in self.optimizers:
            self.amp.step(optimizer)

    def histories(self):
        return [found[0].tolist() for found in self.amp.backend.amax_history.read().values()]


def test_a_skipped_step_before_a_state_is_loaded_does_not_count_in_the_next_iteration():
    run = TwoOptimizers()
    state = run.amp.state_dict()
    run.backward(1.0, 0, bad=True)
    assert not run.amp.step(run.optimizers[0]).applied
    run.amp.load_state_dict(state)
    run.backward(2.0, 1)
    run.step()
    assert run.histories() == [[2.0], [2.0]]


class CountedRanks:
    """Ranks of which all others hold what this one holds."""

    def __init__(self):
        self.exchanges = 0

    def together(self, _default):
        return True

    def reduce(self, _tensor):
        self.exchanges += 1


def iteration(scaling, layer, amax, stepped=True):
    layer.seen = True
    layer.amaxes[0].fill_(amax)
    if stepped:
        scaling.note_step(None)
    scaling.end()


def delayed():
    scaling = DelayedScaling(4, 0, torch.device("cpu"), CountedRanks())
    return scaling, scaling.add({"one": (SIZE, SIZE), "two": (SIZE, SIZE)})


@pytest.mark.parametrize("drop", [DelayedScaling.discard, lambda scaling: scaling.write({})])
def test_ranks_exchange_nothing_for_an_iteration_whose_steps_were_dropped(drop):
    scaling, layers = delayed()
    scaling.note_step(None)
    drop(scaling)
    iteration(scaling, layers["one"], 3.0, stepped=False)
    assert scaling._ranks.exchanges == 0
    assert scaling.read()["one"].shape == (3, 0)


def test_ranks_ask_for_new_layers_at_once_after_a_state_was_loaded():
    scaling, layers = delayed()
    for _ in range(5):  # the next iteration after which they would ask is the eighth
        iteration(scaling, layers["one"], 3.0)
    scaling.write({})
    assert not layers["one"].ready
    iteration(scaling, layers["one"], 3.0)
    assert layers["one"].ready
    assert not layers["two"].ready
