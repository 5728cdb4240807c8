"""``fit`` by another optimizer than ``amp.prepare`` returned, and gradients of losses that nothing scaled."""

import warnings

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, batch, keras, mean_square, mlp, prepared  # noqa: E402

from unifiedamp.integrations.keras import AmpCallback  # noqa: E402

SESSIONS = [
    pytest.param({"policy": "mixed_bfloat16", "accumulate_steps": 2}, id="windows"),
    pytest.param({"policy": "float32", "loss_scale": 8.0}, id="scale"),
]


def fit(model, *callbacks):
    x, y = map(np.asarray, batch(8))
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[*callbacks])


def weights(model):
    return [np.array(value) for value in model.get_weights()]


@pytest.mark.parametrize("options", SESSIONS)
def test_the_optimizer_that_was_given_to_prepare_is_refused(options):
    """``prepare`` returned another one, which has the session's loss scale and windows."""
    amp = ua.Amp("tensorflow", **options)
    with amp.scope():
        model, given = mlp(), keras.optimizers.SGD(0.1)
    model, optimizer = amp.prepare(model, given)
    assert optimizer is not given
    before = weights(model)
    with pytest.raises(ua.WrongObjectError, match=r"SGD was given to amp\.prepare, which returned the optimizer"):
        model.compile(given, "mse")
        fit(model)
    model.compile(optimizer=optimizer, loss="mse")
    for value, start in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(value, start)
    fit(model)
    assert amp.applied_steps == 2 // options.get("accumulate_steps", 1)


@pytest.mark.parametrize("options", SESSIONS)
def test_a_model_that_was_compiled_before_keeps_its_old_optimizer(options):
    amp = ua.Amp("tensorflow", **options)
    with amp.scope():
        model, given = mlp(), keras.optimizers.SGD(0.1)
        model.compile(given, "mse")
    model, _ = amp.prepare(model, getattr(model.optimizer, "inner_optimizer", model.optimizer))
    with pytest.raises(ua.WrongObjectError, match=r"model\.compile"):
        fit(model)
    assert amp.applied_steps == 0


@pytest.mark.parametrize("options", SESSIONS)
def test_an_optimizer_that_was_not_prepared_is_warned_of(options):
    amp, model, _ = prepared(**options)
    model.compile("sgd", "mse")
    with pytest.warns(ua.StepWarning, match=r"model\.fit.*SGD.*not prepared"):
        fit(model)
    assert amp.applied_steps == 0


def test_where_the_session_adds_nothing_any_optimizer_fits():
    """Without a loss scale and windows the optimizer is the user's."""
    _, model, _ = prepared("mixed_bfloat16")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ua.AmpWarning)
        model.compile("sgd", "mse")
        fit(model)


class Own(keras.Model):
    """Trains by its own tape, and scales the loss if told to."""

    scales = False

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = mean_square(self(x, training=True), y)
            if self.scales:
                loss = self.optimizer.scale_loss(loss) if SCALES_LOSS else self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.scales and not SCALES_LOSS:
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def own():
    x = keras.Input((4,))
    return Own(x, keras.layers.Dense(2)(x))


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("options", SESSIONS if SCALES_LOSS else SESSIONS[:1])
def test_gradients_of_a_loss_that_was_not_scaled_are_refused(options, eagerly):
    """The prepared optimizer would give them another size. (Keras 2 hands it true gradients: only windows differ.)"""
    amp, model, optimizer = prepared(make=own, **options)
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    before = weights(model)
    with pytest.raises(Exception, match=r"apply_gradients: .*(scale_loss|get_scaled_loss)"):  # AutoGraph changes types
        fit(model)
    for value, start in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(value, start)
    model.scales = True
    fit(model)
    assert amp.applied_steps == 2 // options.get("accumulate_steps", 1)


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 hands the optimizer true gradients")
def test_a_loop_that_forgets_to_scale_is_refused():
    amp, model, optimizer = prepared("float32", loss_scale=8.0)
    x, y = batch(4)
    with tf.GradientTape() as tape:
        loss = mean_square(model(x), y)
    gradients = tape.gradient(loss, model.trainable_variables)
    with pytest.raises(ua.StepOrderError, match=r"apply_gradients: .*optimizer\.scale_loss\(loss\)"):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert amp.applied_steps == 0


def gradients_of(amp, model, optimizer, scaled_by):
    """Return gradients of a scaled loss, by a tape of the user's own."""
    x, y = batch(4)
    with tf.GradientTape() as tape:
        with amp.autocast():
            loss = mean_square(model(x), y)
        if scaled_by == "session":
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled = scaled_loss.value
        else:
            scaled = (optimizer.scale_loss if SCALES_LOSS else optimizer.get_scaled_loss)(loss)
    return tape.gradient(scaled, model.trainable_variables)


def apply(model, optimizer, gradients):
    """Apply them as a loop of the installed Keras does."""
    values = gradients if SCALES_LOSS else optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(values, model.trainable_variables, strict=True))


@pytest.mark.skipif(SCALES_LOSS, reason="Keras 3 divides them itself")
@pytest.mark.parametrize("steps_before", [0, 1])
@pytest.mark.parametrize("scaled_by", ["optimizer", "session"])
def test_a_loop_that_forgets_to_unscale_is_refused(scaled_by, steps_before):
    amp, model, optimizer = prepared("float32", loss_scale=8.0)
    for _ in range(steps_before):
        apply(model, optimizer, gradients_of(amp, model, optimizer, scaled_by))
    before = weights(model)
    gradients = gradients_of(amp, model, optimizer, scaled_by)
    for _ in range(2):
        with pytest.raises(ua.StepOrderError, match=r"give its gradients to optimizer\.get_unscaled_gradients"):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for value, start in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(value, start)
    apply(model, optimizer, gradients)
    assert amp.applied_steps == steps_before + 1


@pytest.mark.parametrize("scaled_by", ["optimizer", "session"])
def test_gradients_of_a_scaled_loss_are_applied_as_true_ones(scaled_by):
    amp, model, optimizer = prepared("float32", loss_scale=8.0)
    x, y = batch(4)
    with tf.GradientTape() as tape:
        loss = mean_square(model(x), y)
    true = tape.gradient(loss, model.trainable_variables)
    expected = [value - 0.1 * np.asarray(gradient) for value, gradient in zip(weights(model), true, strict=True)]
    apply(model, optimizer, gradients_of(amp, model, optimizer, scaled_by))
    for value, wanted in zip(weights(model), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaled_loss_that_a_step_has_used_vouches_for_no_gradients(accumulate):
    """Read for a log, say: what is applied behind that step is judged as if it had not been read."""
    amp, model, optimizer = prepared("float32", loss_scale=8.0, accumulate_steps=accumulate)
    x, y = batch(4)
    for _ in range(accumulate):
        with amp.autocast():
            loss = mean_square(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            assert scaled_loss.value == loss * 8.0 / accumulate
            scaled_loss.backward()
        amp.step(optimizer)
    before = weights(model)
    with tf.GradientTape() as tape:
        loss = mean_square(model(x), y)
    true = tape.gradient(loss, model.trainable_variables)
    if SCALES_LOSS or accumulate > 1:
        with pytest.raises(ua.StepOrderError, match="gradients of a loss that was not scaled"):
            optimizer.apply_gradients(zip(true, model.trainable_variables, strict=True))
        true = [gradient * 0.0 for gradient in true]
    else:
        optimizer.apply_gradients(zip(true, model.trainable_variables, strict=True))
    for value, start, gradient in zip(weights(model), before, true, strict=True):
        np.testing.assert_allclose(value, start - 0.1 * np.asarray(gradient), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True}])
@pytest.mark.parametrize("second", SESSIONS)
@pytest.mark.parametrize("first", SESSIONS)
def test_a_model_that_another_session_trains_next(first, second, compiled):
    """Fine-tuning in two stages: each session counts the steps of the optimizer it prepared, and neither warns."""
    sessions = [ua.Amp("tensorflow", **options | {"policy": "float32"}) for options in (first, second)]
    steps = [2 // options.get("accumulate_steps", 1) for options in (first, second)]
    model, optimizers = mlp(), []
    for amp in sessions:
        model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.1))
        optimizers.append(optimizer)
        model.compile(optimizer, "mse", **compiled)
        fit(model)
    assert [amp.applied_steps for amp in sessions] == steps
    model.compile(optimizers[0], "mse", **compiled)
    fit(model)
    assert [amp.applied_steps for amp in sessions] == [2 * steps[0], steps[1]]


def test_a_session_whose_optimizer_keras_applies_itself_may_come_second():
    """It has no loss scale and no windows, so that ``prepare`` returns Keras's own optimizer."""
    amp, other = ua.Amp("tensorflow", "float32", loss_scale=8.0), ua.Amp("tensorflow", "float32", loss_scale="none")
    model, _ = amp.prepare(mlp(), keras.optimizers.SGD(0.1))
    given = keras.optimizers.SGD(0.1)
    model, own = other.prepare(model, given)
    assert own is given
    model.compile(own, "mse")
    fit(model)
    assert amp.applied_steps == 0
    with pytest.raises(ua.WrongObjectError, match="another session prepared"):
        fit(model, AmpCallback(amp))
    other.close()
    with pytest.warns(ua.StepWarning, match="SGD was not prepared"):
        fit(model)
