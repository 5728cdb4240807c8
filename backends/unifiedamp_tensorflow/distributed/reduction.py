"""Gradients in the dtype that replicas sum them in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .._types import Gradient


def narrowed(gradient: Gradient, dtype: str | None) -> Gradient:
    """Return a gradient in the dtype that it is summed in: its own for None, and for complex numbers."""
    own = gradient.dtype
    return gradient if dtype is None or not own.is_floating else cast(gradient, tf.as_dtype(dtype))


def cast(gradient: Gradient, dtype: Any) -> Gradient:
    """Return a gradient in a dtype; of slices, their values."""
    if gradient.dtype == dtype:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(gradient.values, dtype), gradient.indices, gradient.dense_shape)
    return tf.cast(gradient, dtype)
