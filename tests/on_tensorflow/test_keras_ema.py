"""Averages in Keras's own loops, in functions of one's own, and against TensorFlow's own average."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle

tf = pytest.importorskip("tensorflow")
from models import FIT_FORMS, SCALES_LOSS, keras, keras_scaled, keras_unscaled  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import Probe  # noqa: E402

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)
SETTINGS = {
    "scaled": {"loss_scale": SCALE},
    "plain": {"loss_scale": "none"},
    "window": {"loss_scale": SCALE, "accumulate_steps": 2},
    "plain window": {"loss_scale": "none", "accumulate_steps": 2},
}
FEEDS = [(1.0, 2.0), (0.5, -1.0), (1.0, INF), (2.0, 0.25), (1.0, 1.0), (-3.0, 0.5), (1.0, 2.0), (0.5, 0.5)]


class Fitted:
    """A probe whose gradients are its input, in ``fit`` or another loop, and what its average must be."""

    def __init__(self, form=None, decay=0.75, before=0, warmup=False, **options):
        self.amp = ua.Amp("tensorflow", "float32", **options)
        self.model, self.optimizer = self.amp.prepare(Probe([1.0, -2.0]), keras.optimizers.SGD(0.125))
        if form is not None:
            self.model.compile(optimizer=self.optimizer, loss=lambda target, output: output, **form)
        for _ in range(before):
            self.fit(1.0, 1.0)
        self.ema = self.amp.ema(self.model, decay, warmup=warmup)
        self.oracle = AverageOracle(decay, warmup)

    def weights(self):
        return {f"w{index}": weight.numpy().copy() for index, weight in enumerate(self.model.ws)}

    def fit(self, *gradients):
        x = np.float32(gradients)
        self.model.fit(x, np.zeros_like(x), batch_size=2, shuffle=False, verbose=0)

    def step(self, run, *gradients):
        """One step by ``run``; it was applied where Keras counted one."""
        before, counted = self.weights(), int(self.optimizer.iterations.numpy())
        run(*gradients)
        if int(self.optimizer.iterations.numpy()) != counted:
            self.oracle.step(before, self.weights())
        self.oracle.check(self.ema.weights())
        assert self.ema.updates == self.oracle.updates


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("form", FIT_FORMS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_fit_moves_it(setting, form, before):
    """Also a model that was fitted before, whose training step Keras has traced."""
    fitted = Fitted(form, before=before, warmup=before > 0, **SETTINGS[setting])
    for pair in FEEDS:
        if "plain" not in setting or math.isfinite(sum(pair)):
            fitted.step(fitted.fit, *pair)
    assert fitted.ema.updates == {"scaled": 7, "plain": 7, "window": 3, "plain window": 3}[setting]


@pytest.mark.parametrize("form", FIT_FORMS)
@pytest.mark.parametrize("setting", ["scaled", "plain"])
def test_evaluating_in_a_callback(setting, form):
    fitted = Fitted(form, **SETTINGS[setting])
    seen = []

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            own = fitted.weights()
            with fitted.ema.swapped():
                seen.append((own, fitted.weights()))

    x = np.float32([1.0, 2.0])
    fitted.model.fit(x, np.zeros_like(x), batch_size=2, epochs=3, verbose=0, callbacks=[Evaluate()])
    oracle, before = AverageOracle(0.75), {"w0": np.float32([1.0]), "w1": np.float32([-2.0])}
    for own, inside in seen:
        oracle.step(before, own)
        oracle.check(inside)
        before = own
    assert all(np.array_equal(value, fitted.weights()[name]) for name, value in before.items())


@pytest.mark.parametrize("form", FIT_FORMS)
@pytest.mark.parametrize("setting", ["scaled", "plain", "window"])
def test_fit_is_refused_while_swapped_in(setting, form):
    fitted = Fitted(form, **SETTINGS[setting])
    for _ in range(2):
        fitted.step(fitted.fit, 1.0, 2.0)
    before = fitted.weights()
    with fitted.ema.swapped(), pytest.raises(ua.StepOrderError, match="swapped in"):
        fitted.fit(1.0, 2.0)
    assert all(np.array_equal(value, before[name]) for name, value in fitted.weights().items())
    fitted.step(fitted.fit, 1.0, 2.0)


def own_loop(fitted, function):
    """A loop in Keras's form, over the prepared optimizer."""

    def run(x):
        with tf.GradientTape() as tape:
            loss = fitted.model(x)
            loss = keras_scaled(fitted.optimizer, loss)
        gradients = tape.gradient(loss, fitted.model.trainable_variables)
        unscale = getattr(fitted.optimizer, "get_unscaled_gradients", lambda gradients: gradients)
        fitted.optimizer.apply_gradients(zip(unscale(gradients), fitted.model.trainable_variables, strict=True))

    run = function(run)
    return lambda *gradients: run(tf.constant(gradients))


FUNCTIONS = {"eager": lambda run: run, "graph": tf.function, "xla": tf.function(jit_compile=True)}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("setting", ["scaled", "plain"])
@pytest.mark.filterwarnings("ignore:.*loss scaling.*")
def test_a_loop_in_keras_form_moves_it(setting, function):
    fitted = Fitted(**SETTINGS[setting])
    run = own_loop(fitted, FUNCTIONS[function])
    for pair in FEEDS:
        if setting != "plain" or math.isfinite(sum(pair)):
            fitted.step(run, *pair)
    before = fitted.weights()
    if function != "xla":  # which leaves assertions out
        with fitted.ema.swapped():
            inside = fitted.weights()
            with pytest.raises((ua.StepOrderError, tf.errors.InvalidArgumentError), match="swapped in"):
                run(1.0, 2.0)
            assert all(np.array_equal(value, inside[name]) for name, value in fitted.weights().items())
    assert all(np.array_equal(value, before[name]) for name, value in fitted.weights().items())
    fitted.step(run, 1.0, 2.0)


@pytest.mark.parametrize("warmup", [False, True])
def test_tensorflows_own_average(warmup):
    """``tf.train.ExponentialMovingAverage``, whose ``num_updates`` counts this step."""
    fitted = Fitted(warmup=warmup, decay=0.9, loss_scale="none")
    weights = [tf.Variable(value) for value in fitted.weights().values()]
    count = tf.Variable(0)
    theirs = tf.train.ExponentialMovingAverage(0.9, num_updates=count if warmup else None)
    theirs.apply(weights)
    for pair in ((1.0, 2.0), (0.5, -1.0), (4.0, 1.0)):
        x = tf.constant(pair)
        fitted.amp.backward(lambda x=x: fitted.model(x), fitted.optimizer)
        fitted.amp.step(fitted.optimizer)
        for variable, value in zip(weights, fitted.weights().values(), strict=True):
            variable.assign(value)
        count.assign_add(1)
        theirs.apply(weights)
    found = fitted.ema.weights()
    for index, variable in enumerate(weights):
        np.testing.assert_allclose(found[f"w{index}"], theirs.average(variable).numpy(), rtol=1e-6)


@pytest.mark.skipif(not SCALES_LOSS, reason="of Keras 3")
def test_keras_own_windows_are_refused():
    amp = ua.Amp("tensorflow", "float32")
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model, _ = amp.prepare(Probe([1.0]), optimizer)
    with pytest.raises(ua.UnsupportedError, match="accumulate_steps"):
        amp.ema(model)


def test_an_optimizer_that_is_prepared_later_moves_it():
    amp = ua.Amp("tensorflow", "float32", loss_scale="none")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="a"), keras.layers.Dense(1, name="b")])
    first, second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
    first.build(model.get_layer("a").trainable_variables)
    second.build(model.get_layer("b").trainable_variables)
    model, first = amp.prepare(model, first)
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    model, second = amp.prepare(model, second)
    x = tf.ones((1, 1))
    for _ in range(3):
        before = amp.master_weights(model)
        amp.backward(lambda: tf.reduce_sum(model(x)), [first, second])
        for optimizer in (first, second):
            amp.step(optimizer)
        oracle.step(before, amp.master_weights(model))
        oracle.check(ema.weights())


def test_a_closed_session_leaves_the_optimizer_as_it_was():
    fitted = Fitted(loss_scale="none")
    fitted.amp.close()
    assert "apply" not in vars(fitted.optimizer)
    assert "apply_gradients" not in vars(fitted.optimizer)


@pytest.mark.parametrize("second", [False, True])
def test_a_native_step_of_each_optimizer_is_refused_while_swapped_in(second):
    """Of a model whose variables have an optimizer each, by Keras's own call."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
    model, made = Probe([1.0, -2.0]), [keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.5)]
    for optimizer, variable in zip(made, model.ws, strict=True):
        optimizer.build([variable])
    model, *optimizers = amp.prepare(model, *made)
    ema = amp.ema(model, 0.5)
    x = tf.constant([1.0, 1.0])
    amp.backward(lambda: model(x), optimizers)
    for optimizer in optimizers:
        amp.step(optimizer)
    with ema.swapped():
        before = [weight.numpy().copy() for weight in model.ws]
        keras_scaled(optimizers[second], tf.constant(1.0))
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            gradients = keras_unscaled(optimizers[second], [tf.ones(1)])
            optimizers[second].apply_gradients(zip(gradients, [model.ws[second]], strict=True))
        for weight, average in zip(model.ws, before, strict=True):
            np.testing.assert_array_equal(weight.numpy(), average)
