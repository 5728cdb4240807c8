"""Gradients in the dtype that replicas sum them in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .._types import Gradient


def narrowed(gradient: Gradient, dtype: str | None) -> Gradient:
    """Return a gradient in the dtype that it is summed in: its own for None, for complex numbers and for slices,
    which replicas gather rather than sum.
    """
    keeps = dtype is None or isinstance(gradient, tf.IndexedSlices) or not gradient.dtype.is_floating
    return gradient if keeps else tf.cast(gradient, dtype)


def widened(total: Gradient, dtype: Any) -> Gradient:
    """Return a sum in the dtype that the gradient had."""
    return total if total.dtype == dtype else tf.cast(total, dtype)
