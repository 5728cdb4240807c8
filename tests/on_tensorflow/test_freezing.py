"""Freezing on TensorFlow alone: what Keras has besides layers, and what cannot be unfrozen."""

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import batch, keras, mean_square, mlp, prepared  # noqa: E402

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
