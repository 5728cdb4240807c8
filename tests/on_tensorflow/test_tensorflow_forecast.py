"""``amp.forecast`` on Keras: activations of layers, convolutions, ``fit``, bfloat16 sessions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import unifiedamp as ua

K = tf.keras.layers


def prepared(policy, *layers):
    amp = ua.Amp("tensorflow", policy, device="cpu")
    with amp.scope():
        model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.SGD(0.0)
        model.build((None, *layers[0].built_for))
    return amp, *amp.prepare(model, optimizer)


def first(layer, *shape):
    layer.built_for = shape
    return layer


def sizes(layer):
    return {name: int(each.counts.sum()) for name, each in layer.tensors.items()}


@pytest.mark.filterwarnings("ignore::unifiedamp.NoGainWarning")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_kinds_of_layers_in_a_traced_step(policy):
    """Each value once; an activation comes after the output and its gradient; work is the multiplications."""
    amp, model, optimizer = prepared(
        policy, first(K.Conv2D(4, 3, activation="relu", name="conv"), 8, 8, 2), K.DepthwiseConv2D(2, name="depthwise"),
        K.Conv2DTranspose(3, 2, name="back"), K.Flatten(), K.Dense(16, name="dense"), K.Reshape((4, 4)),
        K.EinsumDense("abc,cd->abd", (4, 8), name="einsum"),
    )  # fmt: skip

    @amp.compile
    def step(x):
        loss = amp.backward(lambda: tf.reduce_mean(tf.square(model(x))), optimizer)
        amp.step(optimizer)
        return loss

    x = np.random.default_rng(0).normal(0, 1, (5, 8, 8, 2)).astype(np.float32)
    kernel = model.layers[0].get_weights()[0]
    with amp.forecast(steps=1) as run:
        step(amp.to_native(x))
    found = run.totals.layers
    assert sizes(found["conv"]) == {
        "weight": 72, "input": 640, "output": 720, "gradient": 720, "weight_gradient": 72,
    }  # fmt: skip
    plain = tf.nn.conv2d(x, kernel, 1, "VALID").numpy()
    assert found["conv"].tensors["output"].largest == pytest.approx(np.abs(plain).max(), rel=0.02)
    below = np.mean(found["conv"].tensors["gradient"].counts[0]) / 720
    assert below == pytest.approx(np.mean(plain <= 0), abs=0.02), "no gradient passes through the activation there"
    work = {name: each.work for name, each in found.items()}
    assert work["conv"] == 5 * 36 * 4 * 18
    assert work["depthwise"] == 5 * 25 * 4 * 4
    assert work["back"] == 5 * 25 * 4 * 3 * 4
    assert work["dense"] == 5 * 108 * 16
    assert work["einsum"] == 5 * 4 * 4 * 8
    assert all("weight_gradient" in each.tensors for each in found.values())
    amp.close()


def test_fit_is_counted():
    amp, model, optimizer = prepared("float32", first(K.Dense(16, "relu", name="a"), 8), K.Dense(1, name="b"))
    model.compile(optimizer, loss="mse")
    x = np.random.default_rng(0).normal(0, 1, (64, 8)).astype(np.float32)
    with amp.forecast(steps=3) as run:
        model.fit(x, x[:, :1], batch_size=16, epochs=1, shuffle=False, verbose=0)
    assert run.done
    assert sizes(run.totals.layers["a"]) == {
        "weight": 3 * 128, "input": 3 * 128, "output": 3 * 256, "gradient": 3 * 256, "weight_gradient": 3 * 128,
    }  # fmt: skip
    bits = np.abs(x[:48]).view(np.uint32) >> 20
    np.testing.assert_array_equal(
        run.totals.layers["a"].tensors["input"].counts, np.bincount(bits.ravel(), minlength=2048)
    )
    amp.close()
