"""Sums of gradients over replicas, in the dtype that the session asks for."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .._types import Gradient
from .replica_programs import end_program, resume_program


def sum_of(gradients: Sequence[Gradient], dtype: str | None) -> list[Gradient]:
    """Return the sums over all replicas of a strategy, in the dtypes that the gradients have; on a replica.

    Args:
        gradients: this replica's.
        dtype: in which they are summed; None for their own. Complex numbers, and slices, which replicas gather rather
            than sum, keep theirs.
    """
    low = [_narrowed(gradient, dtype) for gradient in gradients]
    end_program()
    sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, low)
    resume_program()  # hundreds of small operations check, unscale and clip the sums
    pairs = zip(sums, gradients, strict=True)
    return [total if total.dtype == gradient.dtype else tf.cast(total, gradient.dtype) for total, gradient in pairs]


def _narrowed(gradient: Gradient, dtype: str | None) -> Gradient:
    keeps = dtype is None or isinstance(gradient, tf.IndexedSlices) or not gradient.dtype.is_floating
    return gradient if keeps else tf.cast(gradient, dtype)
