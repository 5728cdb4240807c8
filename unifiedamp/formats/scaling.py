"""Values of a matrix times the scales of their rows or blocks, in plain numpy: the reference of a forecast's counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .block_rounding import E4M3, SMALLEST_SCALE
from .floats import FLOAT_FORMATS, LARGEST_SCALE
from .rounding import Array, round_to

_EXPONENT = np.uint32(0x7F800000)
_E2M1 = FLOAT_FORMATS["float4_e2m1fn"]


def scale_values(matrix: npt.ArrayLike, scaling: str, square: bool = False) -> Array:
    """Return float32 values times their scales; see ``unifiedamp.backend.forecast.SCALINGS``.

    Args:
        matrix: shape (m, k); products sum over k.
        scaling: of ``SCALINGS``.
        square: of "block128": blocks of 128 rows, as of weights. Zeros fill the last blocks.
    """
    given = np.asarray(matrix, np.float32)
    rows, columns = given.shape
    width = {"row": max(columns, 1), "block128": 128, "block32": 32, "block16": 16}[scaling]
    height = 128 if square and scaling == "block128" else 1
    padded = np.pad(given, ((0, -rows % height), (0, -columns % width)))
    blocks = padded.reshape(len(padded) // height, height, -1, width)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(blocks), axis=(1, 3), keepdims=True, initial=np.float32(0))
        scaled = _two_levels(blocks, amax) if scaling == "block16" else blocks * _scale(amax, scaling)
    return scaled.reshape(padded.shape)[:rows, :columns]


def _scale(amax: Any, scaling: str) -> Any:
    if scaling == "block32":
        return np.float32(1) / np.maximum(_power_of_two(amax), np.float32(SMALLEST_SCALE))
    return _power_of_two(np.minimum(np.float32(E4M3.max) / amax, np.float32(LARGEST_SCALE)))


def _power_of_two(values: Any) -> Any:
    return (values.view(np.uint32) & _EXPONENT).view(np.float32)


def _two_levels(blocks: Array, amax: Any) -> Array:
    """Divide by NVFP4's scales, as ``block_rounding`` has them; a block whose scale is zero becomes zeros there."""
    tensor = np.maximum(np.max(amax, initial=0) / np.float32(_E2M1.max * E4M3.max), np.float32(SMALLEST_SCALE))
    scale = round_to(amax / np.float32(_E2M1.max) / tensor, E4M3, saturate=True) * tensor
    lost = np.where(blocks != 0, np.float32(SMALLEST_SCALE), np.float32(0))
    return np.where(scale > 0, blocks / np.where(scale > 0, scale, np.float32(1)), lost)
