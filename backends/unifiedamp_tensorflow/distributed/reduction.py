"""Sums of gradients over replicas, in the dtype that the session asks for."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .._types import Gradient
from .packing import Packed
from .replica_programs import compiled_by_xla, end_program, resume_program


def sum_of(gradients: Sequence[Gradient], dtype: str | None) -> list[Gradient]:
    """Return the sums over all replicas of a strategy, in the dtypes that the gradients have; on a replica.

    Args:
        gradients: this replica's.
        dtype: in which they are summed; None for their own. Complex numbers, and slices, which replicas gather rather
            than sum, keep theirs.
    """
    low = [_narrowed(gradient, dtype) for gradient in gradients]
    sums = _packed_sums(low) if compiled_by_xla() else _sums(low)
    pairs = zip(sums, gradients, strict=True)
    return [total if total.dtype == gradient.dtype else tf.cast(total, gradient.dtype) for total, gradient in pairs]


def _packed_sums(gradients: Sequence[Gradient]) -> list[Gradient]:
    packed = Packed(gradients)
    end_program()
    sums = _sums(packed.tensors)
    resume_program()  # hundreds of small operations check, unscale and clip the sums
    return packed.unpacked(sums)


def _sums(gradients: Sequence[Gradient]) -> list[Gradient]:
    found: list[Gradient] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    return found


def _narrowed(gradient: Gradient, dtype: str | None) -> Gradient:
    keeps = dtype is None or isinstance(gradient, tf.IndexedSlices) or not gradient.dtype.is_floating
    return gradient if keeps else tf.cast(gradient, dtype)
