"""Prepared optimizers get what Keras's own get of a variable: its constraint, path, and exclusion from weight decay."""

import random

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, batch, keras, mean_square  # noqa: E402

EAGER, GRAPH = {"run_eagerly": True}, {"jit_compile": False}
X, Y = map(np.asarray, batch(8))
OPTIMIZERS = ["SGD", "Adafactor", pytest.param("Muon", marks=pytest.mark.skipif(not SCALES_LOSS, reason="Keras 3's"))]


def constrained():
    """A model whose kernels have columns of norm 1/2 at most; those of the second are not negative too."""
    random.seed(0)  # keras.utils.set_random_seed would change how Keras 2 seeds for the rest of the process
    short, positive = keras.constraints.MaxNorm(0.5), keras.constraints.NonNeg()
    hidden = keras.layers.Dense(5, "tanh", kernel_constraint=short)
    return keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(2, kernel_constraint=positive)])


def session(policy="float32", optimizer="SGD", scale=None, **options):
    """A session with the model, and an optimizer whose steps are long."""
    amp = ua.Amp("tensorflow", policy, loss_scale=scale, **options)
    with amp.scope():
        model, optimizer = constrained(), getattr(keras.optimizers, optimizer)(0.5)
    return (amp, *amp.prepare(model, optimizer))


def train(model, optimizer, form):
    model.compile(optimizer=optimizer, loss="mse", **form)
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(("form", "scale"), [(EAGER, "none"), (EAGER, 8.0), (GRAPH, 8.0)])
def test_fit_constrains_weights_as_keras_does(form, scale):
    native = train(constrained(), keras.optimizers.SGD(0.5), form)
    _, *objects = session(scale=scale)
    for ours, theirs in zip(train(*objects, form), native, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_that_ask_for_more_than_values(kind):
    """Adafactor and Muon read a variable's path."""
    native = train(constrained(), getattr(keras.optimizers, kind)(0.5), EAGER)
    _, *objects = session(optimizer=kind, scale=8.0)
    for ours, theirs in zip(train(*objects, EAGER), native, strict=True):
        np.testing.assert_array_equal(ours, theirs)


LOOPS = {
    "scale": {"scale": 8.0},
    "compiled": {"scale": 8.0, "compiled": True},
    "none": {"scale": "none"},
    "masters": {"policy": "bfloat16", "master_weights": True},
    "moments": {"policy": "mixed_bfloat16;state_dtype=bfloat16"},
    "kahan": {"policy": "bfloat16;update=kahan"},
}
KERAS_2_CANNOT = "Keras 2's NonNeg multiplies bfloat16 by float32"


@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS)
def test_loops_constrain_weights(options):
    if not SCALES_LOSS and "kahan" in options.get("policy", ""):
        pytest.skip(KERAS_2_CANNOT)
    compiled = options.get("compiled", False)
    amp, model, optimizer = session(**{name: value for name, value in options.items() if name != "compiled"})

    def step(x, y):
        amp.backward(lambda: mean_square(tf.cast(model(x), tf.float32), y), optimizer)
        amp.step(optimizer)

    run = amp.compile(step) if compiled else step
    for _ in range(3):
        run(tf.cast(X, model.compute_dtype), Y)
    kernels = [np.float32(layer.get_weights()[0]) for layer in model.layers]
    norms = np.linalg.norm(kernels[0], axis=0)
    assert norms.max() == pytest.approx(0.5, rel=2**-8)
    assert kernels[1].min() == 0.0


def test_masters_are_excluded_from_weight_decay_with_their_variables():
    amp = ua.Amp("tensorflow", "bfloat16", master_weights=True)
    with amp.scope():
        model, optimizer = constrained(), keras.optimizers.AdamW(0.5, weight_decay=0.5)
    bias, other = (layer.bias for layer in model.layers)
    bias.assign(np.ones(5)), other.assign(np.ones(2))
    optimizer.exclude_from_weight_decay(var_list=[bias])
    model, optimizer = amp.prepare(model, optimizer)
    amp.backward(lambda: 0 * tf.reduce_sum(tf.cast(model(tf.cast(X, tf.bfloat16)), tf.float32)), optimizer)
    amp.step(optimizer)
    np.testing.assert_array_equal(np.float32(bias.numpy()), np.ones(5))
    np.testing.assert_array_equal(np.float32(other.numpy()), np.full(2, 0.75))
