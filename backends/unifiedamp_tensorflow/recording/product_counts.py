"""Counting the values of one tensor by the upper bits of their magnitudes; the same eager, traced and by XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.backend import forecast

from .._types import Tensor


class DeviceCounts(NamedTuple):
    """The values of one tensor, or of several that are added up; see ``forecast.TensorCounts``.

    Attributes:
        counts: ``forecast.PLACES`` numbers, int64.
        largest: float32, without dimensions; inf or nan where a value is.
    """

    counts: Tensor
    largest: Tensor

    def plus(self, other: DeviceCounts) -> DeviceCounts:
        """Return the counts of both."""
        return DeviceCounts(self.counts + other.counts, tf.maximum(self.largest, other.largest))


def counted(values: Tensor) -> DeviceCounts:
    """Return the counts of float32 values."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(tf.reshape(values, [-1]), tf.int32), 0x7FFFFFFF)
    places = tf.bitwise.right_shift(bits, forecast.SHIFT)
    # XLA cannot compile tf.math.bincount.
    found = tf.math.unsorted_segment_sum(tf.ones_like(places), places, forecast.PLACES)
    # By the bits, whose order is that of magnitudes: tf.reduce_max may lose a nan.
    largest = tf.bitcast(tf.reduce_max(tf.concat([bits, [0]], 0)), tf.float32)
    return DeviceCounts(tf.cast(found, tf.int64), largest)


def watched(tensor: Tensor, listen: Callable[[Tensor], None]) -> Tensor:
    """Return the tensor; ``listen`` gets the gradient that arrives for it."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no annotations
    def identity(tensor: Tensor) -> Any:
        def backward(gradient: Tensor) -> Tensor:
            listen(gradient)
            return gradient

        return tf.identity(tensor), backward

    found: Tensor = identity(tensor)
    return found
