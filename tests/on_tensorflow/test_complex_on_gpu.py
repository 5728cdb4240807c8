"""Complex parameters on a GPU, where TensorFlow adds to variables only inside XLA; a CPU stands for the GPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import unifiedamp as ua  # noqa: E402
from unifiedamp_tensorflow.conformance.models import ComplexProbe  # noqa: E402
from unifiedamp_tensorflow.training import complex_on_gpu  # noqa: E402


def trained(monkeypatch, mode, **options):
    """Return a session and a step of a model with one complex parameter."""
    monkeypatch.setattr(complex_on_gpu, "GPU", "CPU")
    amp = ua.Amp("tensorflow", "float32", loss_scale=4.0, **options)
    with amp.scope():
        model, optimizer = ComplexProbe((0j,)), tf.keras.optimizers.SGD(1.0)
    model, optimizer = amp.prepare(model, optimizer)

    @amp.compile(mode=mode)
    def step(x):
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    return amp, model, lambda: step(tf.constant([2.0, -3.0]))


@pytest.mark.parametrize("mode", ["off", "default"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_additions_that_end_the_process_are_refused(monkeypatch, mode, accumulate):
    amp, model, step = trained(monkeypatch, mode, accumulate_steps=accumulate)
    with pytest.raises(ua.UnsupportedError, match="adds to a complex variable on a GPU"):
        step()
    (weight,) = amp.master_weights(model).values()
    assert np.array_equal(weight, [0j])
    assert amp.applied_steps == 0


def test_xla_adds(monkeypatch):
    amp, model, step = trained(monkeypatch, "max")
    step()
    (weight,) = amp.master_weights(model).values()
    assert np.array_equal(weight, [-2 + 3j])


def test_real_parameters_train(monkeypatch):
    monkeypatch.setattr(complex_on_gpu, "GPU", "CPU")
    amp = ua.Amp("tensorflow", "float32")
    layers = [tf.keras.Input((1,)), tf.keras.layers.Dense(1)]
    model, optimizer = amp.prepare(tf.keras.Sequential(layers), tf.keras.optimizers.SGD())
    amp.backward(lambda: tf.reduce_mean(model(tf.ones((1, 1)))), optimizer)
    assert amp.step(optimizer).applied
