"""Counting the values of one array by the upper bits of their magnitudes, in numpy, of a copy on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unifiedamp.backend import TensorCounts, forecast, rounding

from .._types import Array, HostArray
from ..mxnet_api import autograd, call, cast, dtype_name
from .reductions import HostBuffer


def counted(
    array: Array, buffer: HostBuffer, scale: float = 1.0, columns: int = 0, scalings: Sequence[str] = (),
    square: bool = False,
) -> TensorCounts:  # fmt: skip
    """Return the counts of an array's values, divided by ``scale``; waits for them.

    Args:
        array: of any shape.
        buffer: to read it with.
        scale: the loss scale.
        columns: of the matrix that the array is where ``scalings`` are counted.
        scalings: of ``SCALINGS``.
        square: the array is a weight.
    """
    with autograd.pause():
        values = buffer.read(array)
    if scale != 1.0:
        values = values * np.float32(1 / scale)
    found = counts_of(values)
    if not scalings:
        return found
    scaled = (rounding.scale_values(values.reshape(-1, columns), scaling, square) for scaling in scalings)
    return replace(found, scaled=dict(zip(scalings, map(counts_of, scaled), strict=True)))


def counts_of(values: HostArray) -> TensorCounts:
    """Return the counts of float32 values."""
    bits = values.reshape(-1).view(np.int32) & 0x7FFFFFFF
    largest = bits.max(initial=0).astype(np.int32).view(np.float32)  # the order of bits is that of magnitudes
    return TensorCounts(np.bincount(bits >> forecast.SHIFT, minlength=forecast.PLACES), float(largest))


class WatchedArray:
    """An array of which the gradient can be read after the backward pass.

    MXNet keeps gradients of arrays that no operator made. So zeros with a gradient are added to the array: the
    gradient of both is that of the sum. They are float32: MXNet 1 fails in the backward pass of a bfloat16 array whose
    gradient is kept.

    Args:
        array: with a history, while autograd records.

    Attributes:
        sum: to be used in place of the array.
    """

    def __init__(self, array: Array) -> None:
        with autograd.pause():
            self._zeros: Array = call("zeros_like", [cast(array, "float32")])
        self._zeros.attach_grad()
        self.sum: Array = call("elemwise_add", [array, cast(self._zeros, dtype_name(array))])

    def gradient(self) -> Array | None:
        """Return the gradient; None where no backward pass came through since it was last read."""
        if not self._zeros._fresh_grad:
            return None
        self._zeros._fresh_grad = False
        gradient: Array = self._zeros.grad  # type: ignore[attr-defined]  # of every array with one attached
        return gradient
