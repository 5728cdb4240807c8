"""Arithmetic on gradients, dense or sparse: finite checks, products, the global norm."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .._types import Gradient, Tensor


def dense_values(gradient: Gradient) -> Tensor:
    """Return the tensor that holds a gradient's numbers (of an IndexedSlices, its rows)."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values
    return gradient  # type: ignore[return-value]  # isinstance with an untyped class narrows nothing


def real_values(gradient: Gradient) -> Tensor:
    """Return a gradient's numbers as a real tensor; of a complex one, the real and the imaginary parts."""
    values = dense_values(gradient)
    return tf.stack([tf.math.real(values), tf.math.imag(values)]) if values.dtype.is_complex else values


def with_values(gradient: Gradient, values: Tensor) -> Gradient:
    """Return a gradient of the same kind with other numbers."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def multiplied(gradient: Gradient, factor: Tensor) -> Gradient:
    """Return the gradient times a scalar, in the gradient's dtype; of 16 bits, rounded once."""
    values = dense_values(gradient)
    if values.dtype in (tf.float16, tf.bfloat16):
        return with_values(gradient, tf.cast(tf.cast(values, factor.dtype) * factor, values.dtype))
    return with_values(gradient, values * tf.cast(factor, values.dtype))


def clamped(gradient: Gradient, limit: float) -> Tensor:
    """Return the gradient, dense, each element clamped to [-limit, limit]; a complex one's real and imaginary part."""
    values = tf.convert_to_tensor(gradient)
    parts = tf.clip_by_value(real_values(values), -limit, limit)
    return tf.complex(parts[0], parts[1]) if values.dtype.is_complex else parts


def finite_flags(gradients: Sequence[Gradient]) -> Tensor:
    """Return a bool vector: which gradients hold only finite numbers."""
    flags = [tf.reduce_all(tf.math.is_finite(real_values(gradient))) for gradient in gradients]
    return tf.stack(flags)


def finite_flags_by_sums(gradients: Sequence[Gradient]) -> Tensor:
    """Return what :func:`finite_flags` does, in about a third of the time on a CPU.

    An inf or nan makes a sum inf or nan, and summing is the cheapest pass over a tensor that a CPU has. A sum may also
    overflow by itself, so where one is not finite a closer look decides. (On a GPU the branch would cost a wait.)
    """
    sums = [tf.reduce_sum(tf.cast(real_values(gradient), tf.float32)) for gradient in gradients]
    flags = tf.math.is_finite(tf.stack(sums))
    return tf.cond(tf.reduce_all(flags), lambda: flags, lambda: finite_flags(gradients))


def global_norm(values: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm over all tensors, float32; finite also where float32 could not hold the squares."""
    values = [real_values(value) for value in values]

    def norm_of(largest: Tensor | float) -> Tensor:
        return tf.linalg.global_norm([tf.cast(value, tf.float32) / largest for value in values]) * largest

    norm = norm_of(1.0)
    largest = tf.reduce_max(tf.stack([tf.cast(tf.reduce_max(tf.abs(value)), tf.float32) for value in values]))
    return tf.cond(tf.math.is_finite(norm), lambda: norm, lambda: norm_of(largest))
