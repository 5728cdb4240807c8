"""Mode "max": the whole step by XLA, for convolutional networks, in a loop and in ``model.fit``."""

import os

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras, prepared  # noqa: E402

from unifiedamp_tensorflow.conformance.harness import harness  # noqa: E402

SCALE = ua.DynamicLossScale(initial_scale=64.0, growth_interval=3)
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def images():
    rng = np.random.default_rng(0)
    return rng.normal(size=(8, 8, 8, 1)).astype(np.float32), rng.integers(0, 10, 8).astype(np.int32)


def by_loop(policy, mode):
    amp, model, optimizer = prepared(policy, lambda: harness.convnet(0), loss_scale=SCALE, compile=mode)

    @amp.compile
    def step(x, y):
        loss = amp.backward(lambda: harness.cross_entropy(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    x, y = map(tf.constant, images())
    losses = [float(step(x, y)) for _ in range(4)]
    step(x * np.inf, y)
    return losses, amp


def by_fit(policy, jit):
    amp, model, optimizer = prepared(policy, lambda: harness.convnet(0), loss_scale=SCALE)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    x, y = images()
    losses = model.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0).history["loss"]
    model.fit(x * np.inf, y, batch_size=8, verbose=0)
    return losses, amp


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("run", "fast", "usual"), [(by_loop, "max", "off"), (by_fit, True, False)], ids=["loop", "fit"]
)
def test_a_convnet_trains_as_without_xla(policy, run, fast, usual):
    losses, amp = run(policy, fast)
    expected, other = run(policy, usual)
    tolerance = {"float32": 1e-4, "mixed_bfloat16": 0.05, "mixed_float16": 0.01}[policy]
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    assert losses[-1] < losses[0]
    assert amp.backend.training.read_state() == other.backend.training.read_state()
    assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (4, 1, 64.0)


def test_the_plan_says_who_compiles():
    plan = ua.Amp("tensorflow", "float32", compile="max").explain()
    assert "jit_compile=True" in plan.row("compile").native
    assert "model.compile" in plan.row("compile of model.fit").native


@pytest.mark.skipif("UNIFIEDAMP_BIG_TESTS" not in os.environ, reason="minutes of compiling: set UNIFIEDAMP_BIG_TESTS=1")
@pytest.mark.parametrize("form", ["loop", "fit"])
def test_resnet50_as_keras_has_it(form):
    policy = ua.Policy.parse("mixed_bfloat16").replace(layer_overrides={"predictions": "float32"})
    amp = ua.Amp("tensorflow", policy, loss_scale=SCALE, compile="max")
    with amp.scope():
        model = keras.applications.ResNet50(weights=None, classes=1000, input_shape=(32, 32, 3))
        optimizer = keras.optimizers.SGD(0.01)
    model, optimizer = amp.prepare(model, optimizer)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 32, 32, 3)).astype(np.float32), np.array([1, 2], np.int32)
    if form == "fit":
        model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=True)
        model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    else:

        @amp.compile
        def step(x, y):
            loss = amp.backward(
                lambda: tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x))), optimizer
            )
            amp.step(optimizer)
            return loss

        for _ in range(2):
            assert np.isfinite(float(step(tf.constant(x), tf.constant(y))))
    assert amp.applied_steps == 2
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
