"""The network, batches and faults of runs that are recorded to be compared."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import tensorflow as tf

keras = tf.keras
BATCHES = [np.random.default_rng(seed).normal(size=(8, 6)).astype(np.float32) for seed in range(3)]
SIZES = (6, 8, 2)
SUMS = {"reduction": 1.5, "overflow": float("inf")}


@tf.custom_gradient
def spoiled(x, factor):
    """Hand values on as they are, and their gradients times ``factor``."""
    return tf.identity(x), lambda gradient: (gradient * factor, None)


def network(name="layer"):
    rng, model = np.random.default_rng(0), keras.Sequential([keras.Input((SIZES[0],))])
    for place, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        layer = keras.layers.Dense(outputs, activation=None if place else "relu", name=f"{name}{place}")
        model.add(layer)
        layer.set_weights([rng.normal(0, 0.5, shape) for shape in ((inputs, outputs), (outputs,))])
    return model


@contextlib.contextmanager
def wrong_sums(amp, factor):
    """Multiply the sum over replicas of the last layer's kernel by a variable."""
    replicas = amp.backend.distributed.replicas
    native = replicas.sum_of_scale

    def sum_of_scale(gradients, numbers):
        values, checks = native(gradients, numbers)
        return [value * factor if value.shape == SIZES[1:] else value for value in values], checks

    replicas.sum_of_scale = sum_of_scale
    yield
    replicas.sum_of_scale = native
