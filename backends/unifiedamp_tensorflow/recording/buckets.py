"""Counting values by powers of two, from the bits of float32; the same eager, in ``tf.function`` and by XLA."""

from __future__ import annotations

import tensorflow as tf

from unifiedamp.backend import recording

from .._types import Tensor


def count(values: Tensor) -> Tensor:
    """Return how many values fall into each of the recording's buckets, an int32 vector."""
    floats = tf.reshape(tf.cast(values, tf.float32), [-1])
    bits = tf.bitwise.bitwise_and(tf.bitcast(floats, tf.int32), 0x7FFFFFFF)
    above = [tf.cast(bits > edge, tf.int32) for edge in (recording.MAX_BITS, recording.INF_BITS)]
    places = tf.bitwise.right_shift(bits, 23) + 1 + tf.add_n(above) - tf.cast(tf.equal(bits, 0), tf.int32)
    # XLA cannot compile tf.math.bincount.
    return tf.math.unsorted_segment_sum(tf.ones_like(places), places, recording.BUCKETS)


def count_both(values: Tensor, inverse: Tensor) -> Tensor:
    """Return the counts of ``values`` and of ``values * inverse``, shape (2, buckets)."""
    values = tf.cast(values, tf.float32)
    return tf.stack([count(values), count(values * inverse)])


_any_shape = tf.TensorSpec(None, tf.float32)
count_now = tf.function(count_both, input_signature=[_any_shape, tf.TensorSpec([], tf.float32)])
"""For eager steps: one call per gradient, and one trace for all shapes."""
