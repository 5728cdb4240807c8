"""Functions of one's own: gradients that come out of them, and errors that are raised in them."""

import math

import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras, keras_unscaled  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import Probe  # noqa: E402

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)


def probe_session():
    """A session, and a prepared probe whose gradients are its input."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
    return amp, *amp.prepare(Probe([1.0, 1.0]), keras.optimizers.SGD(0.125))


def test_gradients_of_a_scaled_loss_come_out_of_a_function():
    """The scale that they were made with is the one that they are divided by, whatever it was in the trace."""
    amp, model, optimizer = probe_session()

    @tf.function(autograph=False)
    def scaled_gradients(x):
        with amp.autocast(), tf.GradientTape() as tape, amp.scale_loss(model(x), optimizer) as scaled_loss:
            value = scaled_loss.value
        return tape.gradient(value, model.ws)

    scales = []
    for pair in ((1.0, 1.0), (1.0, 1.0), (1.0, INF), (1.0, 2.0)):
        gradients = keras_unscaled(optimizer, scaled_gradients(tf.constant(pair)))
        optimizer.apply_gradients(zip(gradients, model.ws, strict=True))
        scales.append(amp.loss_scale)
    assert scales == [4.0, 8.0, 4.0, 4.0]
    assert [float(weight.numpy()[0]) for weight in model.ws] == [1 - 0.375, 1 - 0.5]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_the_sessions_backward_are_not_given_to_apply_gradients(compiled):
    """They are multiplied by the loss scale, and Keras 2 takes them for true ones."""
    amp, model, optimizer = probe_session()

    def backward(x):
        amp.backward(lambda: model(x), optimizer)
        return list(amp.gradients(optimizer).values())

    gradients = (tf.function(backward, autograph=False) if compiled else backward)(tf.ones(2))
    with pytest.raises(ua.StepOrderError, match=r"amp\.step\(optimizer\) applies them"):
        optimizer.apply_gradients(zip(gradients, model.ws, strict=True))
    assert [float(weight.numpy()[0]) for weight in model.ws] == [1.0, 1.0]
    amp.discard_step(optimizer)
    amp.backward(lambda: model(tf.ones(2)), optimizer)
    assert amp.step(optimizer).applied


def test_errors_in_a_function_of_ones_own_keep_their_class():
    """AutoGraph raises an error of another class in place of one whose class it cannot construct."""
    amp, model, optimizer = probe_session()

    @tf.function
    def step(x):
        with amp.scale_loss(model(x), optimizer) as scaled_loss:
            scaled_loss.backward()

    with pytest.raises(ua.StepOrderError, match=r"compute it inside 'with amp\.autocast\(\):'"):
        step(tf.ones(2))
