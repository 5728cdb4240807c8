"""``fit`` and functions of one's own: observers hear of them, exhaustion ends them, windows add up micro-batches."""

import math

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import FIT_FORMS, SCALES_LOSS, keras, mlp, prepared  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import Probe  # noqa: E402

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2, max_consecutive_skips=3)


class Heard:
    """An observer that writes down what it hears."""

    def __init__(self):
        self.skips, self.scales, self.exhausted = [], [], 0

    def on_step_skipped(self, state, report):
        self.skips.append((state.skipped_steps, report.tensors, report.loss_was_finite))

    def on_scale_changed(self, before, after, state):
        self.scales.append((before, after))

    def on_scale_exhausted(self, state, report):
        self.exhausted += 1


def probe_session(form, wrap=lambda model: model, optimizer=None, **options):
    """A probe whose gradients are its input, compiled for ``fit``; feed(g) makes one batch with true gradients g."""
    amp = ua.Amp("tensorflow", "float32", **{"loss_scale": SCALE, **options})
    model, optimizer = amp.prepare(Probe([1.0, 1.0]), optimizer or keras.optimizers.SGD(0.125))
    fitted = wrap(model)
    fitted.compile(optimizer=optimizer, loss=lambda target, output: output, **form)

    def feed(*gradients, **arguments):
        x = np.float32(gradients).reshape(-1)
        fitted.fit(x, np.zeros_like(x), batch_size=2, shuffle=False, verbose=0, **arguments)
        return [float(weight.numpy()[0]) for weight in model.ws]

    return amp, model, optimizer, feed


@pytest.mark.parametrize("form", FIT_FORMS)
def test_observers_hear_of_fits_steps(form):
    amp, _, _, feed = probe_session(form)
    heard = Heard()
    amp.observe(heard)
    for pair in ((1.0, 1.0), (1.0, 1.0), (1.0, INF), (1.0, 1.0)):
        feed(pair)
    assert heard.scales == [(4.0, 8.0), (8.0, 4.0)]
    assert [(count, tensors) for count, tensors, _ in heard.skips] == [(1, ("w1",))]
    assert heard.skips[0][2] is False


@pytest.mark.parametrize("form", FIT_FORMS)
def test_exhaustion_ends_fit(form):
    amp, _, _, feed = probe_session(form)
    heard = Heard()
    amp.observe(heard)
    with pytest.raises(ua.LossScaleExhausted, match="3 steps in a row were skipped") as caught:
        feed(*[(1.0, INF)] * 10)
    assert (caught.value.skips, caught.value.tensors, caught.value.loss_was_finite) == (3, ("w1",), False)
    assert heard.exhausted == 1
    assert amp.skipped_steps == 3


@pytest.mark.parametrize("form", FIT_FORMS[1:])
def test_exhaustion_is_noticed_when_several_steps_are_one_call(form):
    amp, _, _, feed = probe_session({**form, "steps_per_execution": 2})
    with pytest.raises(ua.LossScaleExhausted):
        feed(*[(1.0, INF)] * 12)
    assert amp.skipped_steps <= 6


def test_train_on_batch_is_followed():
    amp, model, _, _ = probe_session({})
    x = np.float32([1.0, INF])
    with pytest.raises(ua.LossScaleExhausted):
        for _ in range(5):
            model.train_on_batch(x, np.zeros_like(x))
    assert amp.skipped_steps == 3


def test_our_calls_within_a_train_step_of_keras():
    class Own(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.built = True

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            loss = amp.backward(lambda: tf.reduce_mean(self.inner(data[0])), native)
            amp.step(native)
            return {"loss": loss}

    amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
    model = Own(mlp())
    model, native = amp.prepare(model, keras.optimizers.SGD(0.1))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    with pytest.raises(ua.LossScaleExhausted):
        model.fit(np.full((20, 4), INF, np.float32), np.zeros((20, 2)), batch_size=2, verbose=0)
    assert amp.skipped_steps == 3


def test_closing_takes_it_back():
    amp, model, _, feed = probe_session({})
    feed((1.0, 1.0))
    amp.close()
    assert "make_train_function" not in vars(model)
    before = amp.skipped_steps
    feed(*[(1.0, INF)] * 5)
    assert amp.skipped_steps == before + 5


# -- functions of one's own ------------------------------------------------------------------------------------------


def own_function(loss_scale=SCALE, several=1, **options):
    amp = ua.Amp("tensorflow", "float32", loss_scale=loss_scale)
    models = [Probe([1.0, 1.0]) for _ in range(several)]
    prepared = amp.prepare(*models, *[keras.optimizers.SGD(0.125) for _ in models])
    pairs = list(zip(prepared[:several], prepared[several:], strict=True))

    @tf.function(autograph=False, **options)
    def step(x):
        for model, optimizer in pairs:
            amp.backward(lambda: model(x), optimizer)  # noqa: B023
            amp.step(optimizer)

    return amp, lambda *gradients: step(tf.constant(gradients, tf.float32))


@pytest.mark.parametrize("several", [1, 2])
def test_observers_hear_of_a_function_of_ones_own(several):
    amp, feed = own_function(several=several)
    heard = Heard()
    amp.observe(heard)
    for pair in ((1.0, 1.0), (1.0, 1.0), (1.0, INF), (1.0, 1.0)):
        feed(*pair)
    assert heard.scales == [(4.0, 8.0), (8.0, 4.0)]
    assert [count for count, _, _ in heard.skips] == [several]
    assert "w1" in str(heard.skips[0][1])


def test_exhaustion_ends_a_function_of_ones_own():
    """TensorFlow hands on what Python raised within a graph as a TensorFlow error."""
    amp, feed = own_function()
    feed(1.0, 1.0)
    with pytest.raises(tf.errors.UnknownError, match="LossScaleExhausted: 3 steps in a row were skipped"):
        for _ in range(10):
            feed(1.0, INF)
    assert amp.skipped_steps == 3


def test_a_function_of_ones_own_under_xla_says_nothing_and_trains():
    amp, feed = own_function(jit_compile=True)
    for _ in range(5):
        feed(1.0, INF)
    feed(1.0, 1.0)
    assert (amp.skipped_steps, amp.applied_steps) == (5, 1)
    row = amp.explain().row("observers and exhaustion")
    assert "amp.compile" in row.note
    assert "XLA" in row.note


# -- windows ---------------------------------------------------------------------------------------------------------

BATCHES = [(1.0, 2.0), (3.0, 4.0), (1.0, INF), (1.0, 1.0), (2.0, 2.0), (4.0, 8.0), (1.0, 1.0), (3.0, 5.0)]


def windows(batches, steps, scale, lr=0.125):
    """Plain numpy: SGD on means over windows; a window with an inf is skipped whole."""
    weights, states = np.ones(2), [scale.initial_state()] if scale else None
    for begin in range(0, len(batches) - steps + 1, steps):
        mean = np.mean(np.array(batches[begin : begin + steps], np.float64), axis=0)
        finite = bool(np.isfinite(mean).all())
        weights = weights - lr * mean if finite else weights
        if scale:
            states.append(scale.next_state(states[-1], not finite))
    return weights, states


@pytest.mark.parametrize("form", FIT_FORMS)
def test_fit_adds_up_windows(form):
    amp, _, optimizer, feed = probe_session(form, accumulate_steps=2)
    weights = feed(*BATCHES)
    expected, states = windows(BATCHES, 2, SCALE)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    state = amp.backend.training.read_state()
    assert (state.scale, state.good_steps, state.bad_steps) == (
        states[-1].scale, states[-1].good_steps, states[-1].bad_steps,
    )  # fmt: skip
    assert (amp.applied_steps, amp.skipped_steps) == (3, 1)
    assert int(optimizer.iterations.numpy()) == 3


@pytest.mark.parametrize("form", FIT_FORMS)
def test_the_scale_is_constant_within_a_window(form):
    amp, _, _, feed = probe_session(form, accumulate_steps=2, loss_scale=ua.DynamicLossScale(4.0, growth_interval=1))
    scales = []
    for batch in [BATCHES[0]] * 4:
        feed(batch)
        scales.append(amp.loss_scale)
    assert scales == [4.0, 8.0, 8.0, 16.0]


@pytest.mark.parametrize("form", FIT_FORMS)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_windows_without_a_scale(form, policy):
    finite = [pair for pair in BATCHES if INF not in pair][:6]
    _, _, optimizer, feed = probe_session(form, accumulate_steps=3, loss_scale="none")
    np.testing.assert_allclose(feed(*finite), windows(finite, 3, None)[0], rtol=1e-6)
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("form", FIT_FORMS)
def test_a_loop_and_fit_share_no_window(form):
    """What fit leaves of a window does not reach the loop's, nor the other way round."""
    amp, model, optimizer, feed = probe_session(form, accumulate_steps=2)

    def loop(*gradients):
        amp.backward(lambda: model(tf.constant(gradients)), optimizer)
        amp.step(optimizer)

    feed((100.0, 100.0))
    loop(1.0, 2.0)
    with pytest.raises(ua.StepOrderError, match="a loop is open"):
        feed((50.0, 50.0))
    loop(3.0, 4.0)
    assert [float(weight.numpy()[0]) for weight in model.ws] == [1 - 0.25, 1 - 0.375]
    feed((1.0, 1.0))
    assert feed((1.0, 3.0)) == [1 - 0.25 - 0.125, 1 - 0.375 - 0.25]


def test_windows_need_a_prepared_models_fit():
    amp = ua.Amp("tensorflow", "float32", loss_scale=4.0, accumulate_steps=2)
    inner = mlp()
    _, optimizer = amp.prepare(inner, keras.optimizers.SGD(0.1))
    outer = keras.Sequential([keras.Input((4,)), inner])
    outer.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
    with pytest.raises(ua.UnsupportedError, match="give it the model that fit trains"):
        outer.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)


# -- fit's own scaling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FIT_FORMS)
@pytest.mark.parametrize("scale", [1.0, 4.0, 2.0**15])
def test_fit_scales_and_unscales_once(form, scale):
    """The update is that of the true gradient; an overflow of the scaled one is seen."""
    amp, _, _, feed = probe_session(form, loss_scale=scale)
    assert feed((1.0, 2.0)) == [1 - 0.125, 1 - 0.25]
    huge = 2.0**120
    if scale > 2.0**10:
        assert feed((1.0, huge)) == [1 - 0.125, 1 - 0.25]
        assert (amp.applied_steps, amp.skipped_steps) == (1, 1)


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 multiplies the loss by calls that are tested by its facade")
def test_keras_3_asks_for_the_sessions_scale():
    amp, _, optimizer = prepared("float32", loss_scale=8.0)
    assert float(optimizer.scale_loss(tf.constant(3.0))) == 24.0
    assert amp.loss_scale == 8.0


@pytest.mark.parametrize("form", FIT_FORMS)
@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
def test_keras_adds_no_scale_where_the_session_has_none(form):
    """Under mixed_float16 ``model.compile`` wraps plain optimizers in a dynamic scale, which would skip an overflow."""
    amp, model, optimizer = prepared("mixed_float16", loss_scale="none")
    model.compile(optimizer=optimizer, loss="mse", **form)
    assert model.optimizer is optimizer
    before = [value.copy() for value in model.get_weights()]
    x, y = np.ones((4, 4), np.float32), np.full((4, 2), 0.5, np.float32)
    plain = mlp()
    plain.set_weights(before)
    model.fit(x, y, batch_size=4, verbose=0)
    plain.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    plain.fit(x, y, batch_size=4, verbose=0)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=2e-3)
    assert amp.applied_steps == 1
    model.fit(np.full((4, 4), INF, np.float32), y, batch_size=4, verbose=0)
    assert not all(np.isfinite(value).all() for value in model.get_weights())
    assert (amp.applied_steps, amp.skipped_steps) == (2, 0)


@pytest.mark.skipif(SCALES_LOSS, reason="Keras 3's Nadam computes its decay product once per step")
@pytest.mark.parametrize("form", FIT_FORMS[1:])
def test_keras_2s_nadam_is_the_same_in_graphs(form):
    """Keras's own counts in Python what a trace computes once, and its bias corrections are wrong in graphs."""

    def fitted(form):
        _, _, _, feed = probe_session(form, optimizer=keras.optimizers.Nadam(0.125))
        for pair in ((1.0, 2.0), (3.0, INF), (0.5, -1.0), (2.0, 2.0)):
            weights = feed(pair)
        return weights

    np.testing.assert_allclose(fitted(form), fitted({"run_eagerly": True}), rtol=1e-6)
