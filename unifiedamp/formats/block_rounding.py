"""Rounding float32 numbers to a block format, in plain numpy: the reference of every backend's rounding.

The sources of the formulas are those of the formats; see ``blocks``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .blocks import BlockFormat
from .floats import FLOAT_FORMATS, FloatFormat
from .rounding import INFINITY, MANTISSA_BITS, Array, round_to

E4M3 = FLOAT_FORMATS["float8_e4m3fn"]
SMALLEST_SCALE = 2.0**-126
"""Where a block of zeros would have a scale of zero."""


def round_blocks(values: npt.ArrayLike, format: BlockFormat) -> Array:
    """Return the values as the block format holds them, times their scales, as float32.

    Blocks lie along the last dimension; where it is no multiple of the size, zeros fill the last block. An inf or nan
    makes its block nan (in NVFP4 the tensor), as the scale has no number for it.
    """
    given = np.asarray(values, np.float32)
    columns = given.shape[-1]
    padded = np.pad(given, [(0, 0)] * (given.ndim - 1) + [(0, -columns % format.size)])
    blocks = padded.reshape(*given.shape[:-1], -1, format.size)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(blocks), axis=-1, keepdims=True)
        rounded = _BY_SCALE[format.scale](blocks, amax, format.element)
    return rounded.reshape(padded.shape)[..., :columns]


def _power_of_two(blocks: Array, amax: Array, element: FloatFormat) -> Array:
    """Scale by 2**(floor(log2(amax)) - emax), whose lowest exponent is -126 here, for float32 to hold its inverse."""
    bits = amax.view(np.uint32).astype(np.int32)
    exponent = (bits >> MANTISSA_BITS) - element.max_exponent
    scale = (np.maximum(exponent, 1) << MANTISSA_BITS).view(np.float32)
    rounded = round_to(blocks / scale, element, saturate=True) * scale
    return np.where(bits >= INFINITY, np.float32(np.nan), rounded)


def _float32(blocks: Array, amax: Array, element: FloatFormat) -> Array:
    """Scale each block's largest magnitude to the largest element."""
    scale = np.maximum(amax / np.float32(element.max), np.float32(SMALLEST_SCALE))
    rounded = round_to(blocks / scale, element, saturate=True) * scale
    return np.where(np.isfinite(scale), rounded, np.float32(np.nan))


def _two_levels(blocks: Array, amax: Array, element: FloatFormat) -> Array:
    """Scale by float32 for the tensor so that the scales of blocks fill E4M3, and by E4M3 for each block."""
    tensor = np.max(amax) / np.float32(element.max * E4M3.max)
    tensor = np.maximum(tensor, np.float32(SMALLEST_SCALE))
    scale = round_to(amax / np.float32(element.max) / tensor, E4M3, saturate=True) * tensor
    rounded = round_to(blocks / np.where(scale > 0, scale, np.float32(1)), element, saturate=True) * scale
    return np.where(np.isfinite(tensor), rounded, np.float32(np.nan))


_BY_SCALE = {"e8m0": _power_of_two, "e4m3": _two_levels, "float32": _float32}
