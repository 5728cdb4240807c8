"""TensorFlow: the unmodified ``keras.applications.ResNet50``, softmax included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

keras = tf.keras
IMAGE_AXES = (0, 1, 2, 3)


def make_model(recipe: Any) -> Any:
    """Return a newly initialized ResNet-50."""
    keras.utils.set_random_seed(0)
    return keras.applications.ResNet50(weights=None, input_shape=recipe.shape, classes=recipe.classes)


def make_optimizer(model: Any, kind: str, form: str, rate: float, momentum: float) -> Any:
    """Return SGD or AdamW; Keras has one implementation of each."""
    return keras.optimizers.AdamW(rate) if kind == "adamw" else keras.optimizers.SGD(rate, momentum)


def loss_fn(recipe: Any) -> Callable[[Any, Any], Any]:
    """Return a function for the mean cross entropy of probabilities, in float32."""

    def of_probabilities(probabilities: Any, labels: Any) -> Any:
        losses = keras.losses.sparse_categorical_crossentropy(labels, tf.cast(probabilities, tf.float32))
        return tf.reduce_mean(losses)

    return of_probabilities
