"""Freezing on TensorFlow alone: what Keras has besides layers, and what cannot be unfrozen."""

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, batch, keras, mean_square, mlp, prepared  # noqa: E402

FORMS = [pytest.param(False, id="eager"), pytest.param(True, id="compiled")]


def stepping(amp, model, optimizer, compiled):
    def step(x, y):
        amp.backward(lambda: mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    return amp.compile(step) if compiled else step


@pytest.mark.parametrize("compiled", FORMS)
def test_a_nested_model_freezes_as_a_whole(compiled):
    def nested():
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="deep")], name="inner")
        return keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2, name="out")])

    amp, model, optimizer = prepared(make=nested, loss_scale=8.0)
    step = stepping(amp, model, optimizer, compiled)
    for frozen in (True, False):
        model.get_layer("inner").trainable = not frozen
        before = [value.copy() for value in model.get_weights()]
        step(*batch())
        moved = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
        assert moved == [not frozen] * 2 + [True] * 2


@pytest.mark.parametrize("accumulate_steps", [1, 2])
def test_a_layer_frozen_after_its_gradient_came_stays(accumulate_steps):
    """Between the backward pass and the step, or within a window."""
    amp, model, optimizer = prepared(loss_scale=8.0, accumulate_steps=accumulate_steps)
    before, (x, y) = [value.copy() for value in model.get_weights()], batch()
    for micro in range(accumulate_steps):
        amp.backward(lambda: mean_square(model(x), y), optimizer)
        if micro == 0:
            model.get_layer("hidden").trainable = False
        result = amp.step(optimizer)
    assert result.applied
    model.get_layer("hidden").trainable = True
    moved = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
    assert moved == [False, False, True, True]


@pytest.mark.parametrize("compiled", FORMS)
def test_frozen_while_preparing_cannot_train_later(compiled):
    amp = ua.Amp("tensorflow", "mixed_bfloat16")
    with amp.scope():
        model, optimizer = mlp(), keras.optimizers.SGD(0.1)
    model.get_layer("hidden").trainable = False
    model, optimizer = amp.prepare(model, optimizer)
    step = stepping(amp, model, optimizer, compiled)
    step(*batch())
    model.get_layer("hidden").trainable = True
    with pytest.raises(ua.PrepareError, match="became trainable after amp.prepare"):
        step(*batch())


@pytest.mark.parametrize("compiled", FORMS)
@pytest.mark.parametrize("exchange", [False, True], ids=["added", "exchanged"])
def test_a_layer_that_comes_after_prepare_is_refused(compiled, exchange):
    """No optimizer holds it, so that it would not train."""
    amp, model, optimizer = prepared(loss_scale=8.0)
    step = stepping(amp, model, optimizer, compiled)
    step(*batch())
    if exchange:
        model.pop()
    model.add(keras.layers.Dense(2, name="late"))
    with pytest.raises(ua.PrepareError, match=r"late.*became trainable after amp\.prepare.*has all of its layers"):
        step(*batch())


class Growing(keras.Model):
    """A layer, one in a list, and one that may be assigned later."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, name="first")
        self.blocks = [keras.layers.Dense(2, name="block")]
        self.extra = None
        self(tf.zeros((1, 4)))

    def call(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x if self.extra is None else self.extra(x)

    def grow(self, where):
        """Assign a layer; Keras 3 refuses it itself in a model that is built."""
        late = keras.layers.Dense(2, name="late")
        if where == "attribute":
            self.extra = late
        elif where == "list":
            self.blocks.append(late)
        else:
            self.first.inner = late
            self.extra = lambda x: self.first.inner(x)


@pytest.mark.parametrize("where", ["attribute", "list", "layer"])
@pytest.mark.parametrize("compiled", FORMS)
def test_a_layer_assigned_to_a_subclassed_model_is_refused(compiled, where):
    """No optimizer holds it, so that it would not train."""
    amp, model, optimizer = prepared(make=Growing, loss_scale=8.0)
    step = stepping(amp, model, optimizer, compiled)
    step(*batch())
    if SCALES_LOSS:
        with pytest.raises(ValueError, match="cannot add new elements of state"):
            model.grow(where)
        return
    model.grow(where)
    with pytest.raises(ua.PrepareError, match=r"late.*became trainable after amp\.prepare.*has all of its layers"):
        step(*batch())


@pytest.mark.skipif(SCALES_LOSS, reason="Keras 3 refuses to assign it")
@pytest.mark.parametrize("built", [False, True], ids=["not built", "built"])
def test_a_layer_assigned_between_two_fits_is_refused(built):
    """Keras itself would run the function of the model as it was."""
    _, model, optimizer = prepared(make=Growing, loss_scale=8.0)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(*batch(), verbose=0)
    model.grow("attribute")
    if built:
        model.extra.build((None, 2))
    with pytest.raises(ua.PrepareError if built else Exception, match=r"PrepareError|late|amp\.prepare"):
        model.fit(*batch(), verbose=0)


def test_fit_respects_what_is_frozen_before_compile():
    _, model, optimizer = prepared(loss_scale=8.0)
    model.get_layer("hidden").trainable = False
    model.compile(optimizer=optimizer, loss="mse")
    before = [value.copy() for value in model.get_weights()]
    x, y = batch()
    model.fit(x, y, batch_size=16, verbose=0)
    moved = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
    assert moved == [False, False, True, True]


def test_a_step_is_traced_again_only_when_layers_change():
    amp, model, optimizer = prepared(loss_scale=8.0)
    traced = []

    @amp.compile
    def step(x, y):
        traced.append(model.get_layer("hidden").trainable)
        amp.backward(lambda: mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    for trainable in (True, True, False, False, True, False):
        model.get_layer("hidden").trainable = trainable
        step(*batch())
    assert traced == [True, False]
