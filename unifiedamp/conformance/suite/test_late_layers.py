"""Layers that come into a model after ``amp.prepare``: trained by an optimizer of the session, or refused."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

RATE = 0.125
REFUSED = r"after amp\.prepare, and no .*(optimizer|Trainer)"


class Loop:
    """``w1 * (w0 * x + b0) + b1`` with positive weights, and what comes after it, on an input of 1 and a target of 0.

    Args:
        part: the layer that the optimizer trains; all without.
    """

    def __init__(self, harness, form, part=None, **options):
        self.harness, self.amp, self.form = harness, session(harness, form, **options), form
        pair = np.float32([[0.5]]), np.float32([0.25])
        model = harness.mlp([pair, pair])
        optimizer = harness.layer_sgd(model, part, RATE) if part else harness.sgd([model], RATE)
        self.model, optimizer = self.amp.prepare(model, optimizer)
        self.use(optimizer)

    def use(self, *optimizers):
        """Train by these from here on."""

        def step(x, y):
            self.amp.backward(lambda: self.harness.mean_square(self.model(x), y), list(optimizers))
            for optimizer in optimizers:
                self.amp.step(optimizer)

        self._step = compiled(self.amp, self.form, step)

    def step(self):
        """Return which layers a step changed."""
        before = self.weights()
        self._step(self.amp.to_native(np.float32([[1.0]])), self.amp.to_native(np.float32([[0.0]])))
        return [name for name, now in self.weights().items() if now != before[name]]

    def put(self, name):
        """Put a layer at the end of the model; return it."""
        layer = self.harness.put_layer(self.model, name, np.float32([[0.5]]), np.float32([0.25]))
        assert self.harness.parameters(layer)
        return layer

    def weights(self):
        """Return layer → its weight."""
        found = self.harness.parameters(self.model)
        return {
            f"layer{at}": float(np.ravel(value)[0])
            for at in range(3)
            for name, value in found.items()
            if f"layer{at}" in name and "bias" not in name
        }


@pytest.mark.parametrize("scale", [4.0, "none"])
@pytest.mark.parametrize("name", ["layer1", "layer2"], ids=["exchanged", "added"])
def test_one_that_no_optimizer_has_is_refused(harness, form, name, scale):
    """It would stay as it is without a word; nothing is applied, and steps go on once an optimizer has it."""
    loop = Loop(harness, form, loss_scale=scale)
    assert loop.step() == ["layer0", "layer1"]
    loop.put(name)
    before = loop.weights()
    for _ in range(2):
        with pytest.raises(ua.PrepareError, match=REFUSED):
            loop.step()
        assert loop.weights() == before
    assert loop.amp.applied_steps == 1


@pytest.mark.needs("several_optimizers")
def test_one_is_seen_when_another_session_was_closed(harness):
    loop, other = Loop(harness, "eager"), Loop(harness, "eager")
    other.amp.close()
    loop.put("layer2")
    with pytest.raises(ua.PrepareError, match=REFUSED):
        loop.step()


def test_one_that_gets_an_optimizer_after_a_refusal_trains_by_its_own_gradients(harness):
    """Those of the steps that were refused are gone with them."""
    loops = [Loop(harness, "eager", loss_scale=4.0) for _ in range(2)]
    for loop, refused in zip(loops, (2, 0), strict=True):
        late = loop.put("layer2")
        for _ in range(refused):
            with pytest.raises(ua.PrepareError, match=REFUSED):
                loop.step()
        _, other = loop.amp.prepare(loop.model, harness.sgd([late], RATE))
        loop.use(other)
        assert loop.step() == ["layer2"]
    assert loops[0].weights() == loops[1].weights()


@pytest.mark.needs("several_optimizers")
def test_a_refusal_is_of_that_step_alone(harness):
    """A loss that does not reach the late layer trains another model afterwards, where it did before."""
    loop = Loop(harness, "eager", loss_scale=4.0)
    with loop.amp.scope():
        other = harness.probe([1.0])
    other, optimizer = loop.amp.prepare(other, harness.sgd([other], RATE))
    x = loop.amp.to_native(np.float32([1.0]))

    def train():
        loop.amp.backward(lambda: other(x), optimizer)
        assert loop.amp.step(optimizer).applied

    loop.put("layer2")
    try:
        train()
    except ua.PrepareError as refusal:
        pytest.skip(f"refused whatever the loss reaches: {refusal}")
    with pytest.raises(ua.PrepareError, match=REFUSED):
        loop.step()
    train()
    assert harness.parameters(other).popitem()[1] == [1.0 - 2 * RATE]


@pytest.mark.needs("several_optimizers")
def test_one_of_a_model_with_several_optimizers_is_refused(harness):
    """Gradients are asked for the optimizers that a loss names, and the late layer is in none."""
    loop = Loop(harness, "eager", part="layer0")
    _, second = loop.amp.prepare(loop.model, harness.layer_sgd(loop.model, "layer1", RATE))
    loop.use(second)
    assert loop.step() == ["layer1"]
    loop.put("layer2")
    with pytest.raises(ua.PrepareError, match=REFUSED):
        loop.step()


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("name", ["layer1", "layer2"], ids=["exchanged", "added"])
def test_one_that_gets_an_optimizer_trains(harness, form, name):
    loop = Loop(harness, form, part="layer0")
    assert loop.step() == ["layer0"]
    other = harness.sgd([loop.put(name)], RATE)
    _, other = loop.amp.prepare(loop.model, other)
    loop.use(other)
    assert loop.step() == [name]


def test_a_frozen_one_is_left_alone(harness, form):
    loop = Loop(harness, form)
    loop.put("layer2")
    harness.set_trainable(loop.model, "layer2", False)
    assert loop.step() == ["layer0", "layer1"]
    harness.set_trainable(loop.model, "layer2", True)
    with pytest.raises(ua.PrepareError, match=REFUSED):
        loop.step()


@pytest.mark.needs("several_optimizers")
def test_a_frozen_one_beside_several_optimizers_is_left_alone(harness):
    loop = Loop(harness, "eager", part="layer0")
    _, second = loop.amp.prepare(loop.model, harness.layer_sgd(loop.model, "layer1", RATE))
    loop.use(second)
    loop.put("layer2")
    harness.set_trainable(loop.model, "layer2", False)
    assert loop.step() == ["layer1"]


def test_a_part_that_no_optimizer_had_stays_without_one(harness, form):
    """A loop that trains a part of its model may exchange the rest."""
    loop = Loop(harness, form, part="layer0")
    loop.put("layer1")
    assert loop.step() == ["layer0"]
