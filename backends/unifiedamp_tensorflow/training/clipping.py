"""The global norm of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .._types import Tensor


def global_norm(values: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm over all tensors, float32; finite also where float32 could not hold the squares."""

    def norm_of(largest: Tensor | float) -> Tensor:
        return tf.linalg.global_norm([tf.cast(value, tf.float32) / largest for value in values]) * largest

    norm = norm_of(1.0)
    largest = tf.reduce_max(tf.stack([tf.cast(tf.reduce_max(tf.abs(value)), tf.float32) for value in values]))
    return tf.cond(tf.math.is_finite(norm), lambda: norm, lambda: norm_of(largest))
