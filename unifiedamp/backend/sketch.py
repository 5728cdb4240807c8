"""A few numbers per tensor from which the distance and the angle between two tensors can be estimated.

A count sketch (Charikar, Chen, Farach-Colton 2002) with fixed buckets: element i, in the order of the shape, is added
to bucket i % ``WIDTH`` with a sign that follows from i. It is linear, and the squared distance of two sketches has the
squared distance of the tensors as its expectation, with a standard deviation of about sqrt(2 / WIDTH) of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 32
"""Numbers in a sketch."""
COLUMNS = 1024
"""Elements of a row: the sign of an element is that of its column times that of its row."""


def signs(numbers: Any) -> Any:
    """Return 0 or 1 for whole numbers below 2**31, pseudorandom and equal on every framework.

    Args:
        numbers: an int64 array of any framework that has ``*``, ``&``, ``>>`` and ``^``.
    """
    mixed = ((numbers + 1) * 0x45D9F3B) & 0x7FFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 15)) & 1


@dataclass(frozen=True)
class Sketch:
    """What is known of one tensor.

    Attributes:
        shape: its shape.
        dtype: its dtype's name.
        norm: its Euclidean norm.
        values: ``WIDTH`` numbers, of its elements in the order of its shape.
        ordered: the same of its elements in ascending order. It does not depend on the layout, and the distance of two
            of them estimates the smallest distance that any order of the elements gives (rearrangement inequality).
        batch: the same of its sum over the first dimension, which sums over parts of a batch; of activations alone.
    """

    shape: Sequence[int]
    dtype: str
    norm: float
    values: Sequence[float]
    ordered: Sequence[float] = ()
    batch: Sequence[float] = ()

    @classmethod
    def of_numbers(cls, shape: Sequence[int], dtype: str, numbers: Sequence[float]) -> Sketch:
        """Return the sketch of what a device computed: the norm, then ``WIDTH`` numbers for each part in order."""
        parts = [list(numbers[start : start + WIDTH]) for start in range(1, len(numbers), WIDTH)]
        return cls(list(shape), dtype, numbers[0], *parts)

    def plus(self, other: Sketch) -> Sketch:
        """Return the sketch of the sum of two tensors, without its parts; its norm is estimated from the sketch."""
        values = [one + another for one, another in zip(self.values, other.values, strict=True)]
        return Sketch(self.shape, self.dtype, math.hypot(*values), values)


def sketch_of(array: Any, batch: bool = False) -> Sketch:
    """Return the sketch of a numpy array, computed in float64.

    Args:
        array: real numbers.
        batch: also of its sum over the first dimension.
    """
    import numpy as np

    values = np.ascontiguousarray(array).astype(np.float64)
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [flat, np.sort(flat)]
        if batch:
            parts.append(flat.reshape(np.shape(array)[0], -1).sum(0) if np.ndim(array) and flat.size else flat)
        norm = float(np.sqrt(np.square(flat).sum()))
        return Sketch(list(np.shape(array)), str(array.dtype), norm, *map(_folded, parts))


def _folded(flat: Any) -> list[float]:
    """Return the ``WIDTH`` numbers of a flat float64 array."""
    import numpy as np

    rows = -(-max(1, flat.size) // COLUMNS)
    table = np.zeros(rows * COLUMNS)
    table[: flat.size] = flat
    row_signs = 1.0 - 2.0 * signs(np.arange(rows, dtype=np.int64) + COLUMNS)
    column_signs = 1.0 - 2.0 * signs(np.arange(COLUMNS, dtype=np.int64))
    folded = (table.reshape(rows, COLUMNS) * row_signs[:, None]).sum(0) * column_signs
    found: list[float] = folded.reshape(-1, WIDTH).sum(0).tolist()
    return found
