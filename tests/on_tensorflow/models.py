"""Small Keras models and batches for the tests of this directory."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import unifiedamp as ua
from unifiedamp.backend import this_processor

keras = tf.keras
SCALES_LOSS = hasattr(keras.mixed_precision.LossScaleOptimizer, "scale_loss")
"""Keras 3."""
FIT_FORMS = [
    pytest.param({"run_eagerly": True}, id="eager"),
    pytest.param({"jit_compile": False}, id="graph"),
    pytest.param({"jit_compile": True}, id="xla"),
]
"""How ``fit`` runs its steps, as arguments of ``compile``."""
needs_bfloat16_pass = pytest.mark.skipif(
    not this_processor().flags & {"avx512f", "avx_ne_convert"},
    reason="TensorFlow's rewrite to bfloat16 leaves graphs alone on CPUs without AVX512 or AVX-NE-CONVERT",
)


def keras_scaled(optimizer, loss):
    """Return the loss scaled by Keras's own call."""
    scale = getattr(optimizer, "scale_loss", None) or getattr(optimizer, "get_scaled_loss", None)
    return loss if scale is None else scale(loss)


def keras_unscaled(optimizer, gradients):
    """Return gradients of such a loss as ``apply_gradients`` takes them: Keras 2 wants them unscaled before."""
    unscale = getattr(optimizer, "get_unscaled_gradients", None)
    return gradients if unscale is None else unscale(gradients)


def mlp(**first):
    """Two dense layers, named ``hidden`` and ``out``; ``first`` goes to the hidden one."""
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu", name="hidden", **first), keras.layers.Dense(2, name="out")]
    )


def batch(rows=16):
    rng = np.random.default_rng(0)
    return tf.constant(rng.normal(size=(rows, 4)).astype(np.float32)), tf.constant(
        rng.normal(size=(rows, 2)).astype(np.float32)
    )


def prepared(policy="mixed_bfloat16", make=mlp, lr=0.1, **options):
    """A session with a model made in its scope and SGD."""
    amp = ua.Amp("tensorflow", policy, **options)
    with amp.scope():
        model, optimizer = make(), keras.optimizers.SGD(lr)
    return (amp, *amp.prepare(model, optimizer))


def mean_square(output, target):
    return tf.reduce_mean(tf.math.squared_difference(output, target))


class Spy(keras.layers.Layer):
    """Notes the dtype its input comes in, and ``training``; passes the input on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    def call(self, x, training=None):
        self.seen.append((x.dtype.name, training))
        return x
