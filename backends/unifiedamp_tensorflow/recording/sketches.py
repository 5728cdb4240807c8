"""Sketches of tensors, see ``unifiedamp.backend.sketch``; the same eager, in ``tf.function`` and by XLA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend.sketch import COLUMNS, WIDTH, Sketch, signs

from .._types import Gradient, Tensor

COLUMN_SIGNS = np.float32(1.0 - 2.0 * signs(np.arange(COLUMNS, dtype=np.int64)))


def whole_values(gradient: Gradient) -> Tensor:
    """Return a gradient as a dense real tensor; of a complex one, real and imaginary parts."""
    values = tf.convert_to_tensor(gradient)
    return tf.stack([tf.math.real(values), tf.math.imag(values)], -1) if values.dtype.is_complex else values


def sketch_numbers(values: Tensor, batch: bool = False) -> Tensor:
    """Return the norm and the parts of a sketch, a float32 vector.

    Args:
        values: real numbers of any shape.
        batch: also of their sum over the first dimension.
    """
    floats = tf.cast(values, tf.float32)
    flat = tf.reshape(floats, [-1])
    parts = [tf.norm(flat)[None], _folded(flat), _folded(tf.sort(flat))]
    if batch:
        scalar = floats.shape.rank == 0
        parts.append(_folded(flat if scalar else tf.reshape(tf.reduce_sum(floats, axis=0), [-1])))
    return tf.concat(parts, 0)


def _folded(flat: Tensor) -> Tensor:
    size = tf.size(flat)
    rows = tf.maximum(1, -(-size // COLUMNS))
    table = tf.reshape(tf.pad(flat, [[0, rows * COLUMNS - size]]), [-1, COLUMNS])
    row_signs = 1.0 - 2.0 * tf.cast(_signs(tf.range(COLUMNS, COLUMNS + rows)), tf.float32)
    folded = tf.reduce_sum(table * row_signs[:, None], axis=0) * COLUMN_SIGNS
    return tf.reduce_sum(tf.reshape(folded, [-1, WIDTH]), axis=0)


def _signs(numbers: Tensor) -> Tensor:
    """See ``unifiedamp.backend.sketch.signs``, in TensorFlow's operations on whole numbers."""
    bitwise = tf.bitwise

    def mixed(values: Tensor) -> Tensor:
        return bitwise.bitwise_and(values * 0x45D9F3B, 0x7FFFFFFF)

    def shifted(values: Tensor, bits: int) -> Tensor:
        return bitwise.bitwise_xor(values, bitwise.right_shift(values, tf.constant(bits, tf.int64)))

    found = mixed(shifted(mixed(tf.cast(numbers, tf.int64) + 1), 16))
    return bitwise.bitwise_and(shifted(found, 15), 1)


class TraceSketches:
    """Sketches of tensors of one eager step, or of one trace.

    Args:
        name: of what is sketched; begins the names of :meth:`tensors`.
        batch: see :func:`sketch_numbers`.
    """

    def __init__(self, name: str, batch: bool) -> None:
        self._name, self._batch = name, batch
        self._numbers: list[Tensor] = []
        self._seen: list[tuple[str, tuple[int, ...] | None]] = []
        self._sizes: dict[str, Tensor] = {}

    def add(self, values: Tensor, dtype: str) -> None:
        """Sketch a tensor whose dtype has this name."""
        known = values.shape.is_fully_defined()
        if not known:
            self._sizes[f"{self._name} {len(self._seen)}"] = tf.shape(values)
        self._seen.append((dtype, tuple(values.shape) if known else None))
        self._numbers.append(sketch_numbers(values, self._batch))

    def tensors(self) -> dict[str, Tensor]:
        """Return the numbers as few tensors."""
        return {**self._sizes, self._name: tf.stack(self._numbers)} if self._numbers else {}

    def release(self) -> None:
        """Drop the tensors."""
        self._numbers, self._sizes = [], {}

    def read(self, values: Mapping[str, Any], scale: float = 1.0) -> list[Sketch]:
        """Return the sketches of the tensors divided by ``scale``, given the numbers of :meth:`tensors`."""
        found = []
        for place, (dtype, shape) in enumerate(self._seen):
            sizes = values[f"{self._name} {place}"].tolist() if shape is None else shape
            numbers = (values[self._name][place] / np.float32(scale)).tolist()
            found.append(Sketch.of_numbers(sizes, dtype, numbers))
        return found
