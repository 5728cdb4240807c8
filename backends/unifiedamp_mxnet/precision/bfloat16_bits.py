"""Bfloat16 arrays as bits on the host: MXNet's own ``Cast`` to bfloat16 cuts bits off in place of rounding.

Emulated bfloat16 numbers are in float32 arrays.
"""

from __future__ import annotations

import numpy as np

from unifiedamp.backend import rounding

from .._types import Array, HostArray
from ..mxnet_api import BFLOAT16, context_of, dtype_name, from_numpy


def bits_of(values: HostArray) -> HostArray:
    """Return float32 values that bfloat16 holds as its bits, uint16."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits: HostArray) -> HostArray:
    """Return bits of bfloat16 as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_bits(array: Array) -> HostArray:
    """Return a bfloat16 array's bits."""
    return array.asnumpy().view(np.uint16)


def write_bits(array: Array, bits: HostArray) -> None:
    """Set a bfloat16 array to these bits."""
    array._sync_copyfrom(bits.view(BFLOAT16).reshape(array.shape))


def read_rounded(array: Array) -> HostArray:
    """Return the numbers of a bfloat16 array, or of a float32 array rounded to bfloat16, as float32."""
    found: HostArray = rounding.nearest(array.asnumpy()) if dtype_name(array) == "float32" else wide(read_bits(array))
    return found


def write_rounded(array: Array, values: HostArray) -> None:
    """Set a bfloat16 or a float32 array to float32 values that bfloat16 holds."""
    if dtype_name(array) == "float32":
        given = from_numpy(values.reshape(array.shape), context_of(array))
        array[:] = given if isinstance(array, type(given)) else given.as_nd_ndarray()
    else:
        write_bits(array, bits_of(values))


def rounded_copy(array: Array) -> Array:
    """Return a float32 array's numbers rounded to bfloat16, in a new float32 array."""
    return from_numpy(rounding.nearest(array.asnumpy()), context_of(array))
