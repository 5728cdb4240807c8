"""Bfloat16 arrays as bits on the host: MXNet's own ``Cast`` to bfloat16 cuts bits off in place of rounding."""

from __future__ import annotations

import numpy as np

from .._types import Array, HostArray
from ..mxnet_api import BFLOAT16


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
