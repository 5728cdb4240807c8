"""TensorFlow: a Keras policy, ``tf.GradientTape``, and ``LossScaleOptimizer`` for the scale (Keras 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

keras = tf.keras
around = nullcontext
tensor = tf.constant


@contextmanager
def scope() -> Iterator[None]:
    """Make layers under the policy; layers keep it afterwards."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def begin() -> None:
    """Nothing is kept between rows."""


def finish() -> None:
    """CPU steps are done when they return."""


def train_step(model: Any, optimizer: Any, loss_fn: Any, scaled: bool, compiled: bool) -> Callable[..., Any]:
    weights = model.trainable_variables
    optimizer.build(weights)

    def plain(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.cast(model(x, training=True), tf.float32), y)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    if not scaled:
        return tf.function(plain) if compiled else plain
    scaler = keras.optimizers.LossScaleOptimizer(optimizer)
    scaler.build(weights)

    def with_scale(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.cast(model(x, training=True), tf.float32), y)
            scaled_loss = scaler.scale_loss(loss)
        scaler.apply(tape.gradient(scaled_loss, weights), weights)
        return loss

    return tf.function(with_scale) if compiled else with_scale
