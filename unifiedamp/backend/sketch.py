"""A few numbers per tensor from which the distance and the angle between two tensors can be estimated.

A count sketch (Charikar, Chen, Farach-Colton 2002) with fixed buckets: element i, in the order of the shape, is added
to bucket i % ``WIDTH`` with a sign that follows from i. It is linear, and the squared distance of two sketches has the
squared distance of the tensors as its expectation, with a standard deviation of about sqrt(2 / WIDTH) of it.
"""

from __future__ import annotations

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
        values: ``WIDTH`` numbers.
    """

    shape: Sequence[int]
    dtype: str
    norm: float
    values: Sequence[float]


def sketch_of(array: Any) -> Sketch:
    """Return the sketch of a numpy array, computed in float64."""
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    rows = -(-max(1, flat.size) // COLUMNS)
    table = np.zeros(rows * COLUMNS)
    table[: flat.size] = flat
    row_signs = 1.0 - 2.0 * signs(np.arange(rows, dtype=np.int64) + COLUMNS)
    column_signs = 1.0 - 2.0 * signs(np.arange(COLUMNS, dtype=np.int64))
    with np.errstate(over="ignore", invalid="ignore"):
        folded = (table.reshape(rows, COLUMNS) * row_signs[:, None]).sum(0) * column_signs
        values = folded.reshape(-1, WIDTH).sum(0)
        norm = float(np.sqrt(np.square(flat).sum()))
    return Sketch(list(np.shape(array)), str(array.dtype), norm, values.tolist())
