"""Objects of TensorFlow and Keras that every session refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf

keras: Any = tf.keras


def optimizers() -> Mapping[str, Any]:
    """Return name → optimizer that would scale the loss once more."""
    found = {"LossScaleOptimizer": keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))}
    if hasattr(found["LossScaleOptimizer"], "loss_scale_factor"):  # Keras 3
        found["loss_scale_factor"] = keras.optimizers.SGD(0.1, loss_scale_factor=8.0)
    return found


def scopes() -> Mapping[str, AbstractContextManager[Any]]:
    """Return name → context under which a model would be spread in ways that no session trains."""
    found: dict[str, AbstractContextManager[Any]] = {
        "central storage": tf.distribute.experimental.CentralStorageStrategy().scope()
    }
    if hasattr(keras, "distribution"):
        found["keras.distribution"] = _spread()
    return found


@contextmanager
def _spread() -> Iterator[None]:
    """Set a distribution of Keras 3, which its TensorFlow backend ignores."""
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)
