"""Rounding the operands of float8 products by each kind of scale, in plain numpy: the reference of every backend.

An operand is a matrix whose product sums over its last dimension. With one scale it becomes float8 numbers, held as
float32, and the inverse of the scale. Numbers of finer scales are scaled back, which rounds nothing where the scales
are powers of two, and the inverse is 1. An inf or nan makes one of the two inf or nan.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block_rounding import round_blocks
from .blocks import BLOCK_FORMATS
from .floats import LARGEST_SCALE, FloatFormat
from .rounding import Array, round_scaled, round_to

BLOCK = 128
"""Numbers of a row, and rows of a weight, that share a scale in block scaling."""

_SIGN_AND_EXPONENT = 0xFF800000


def round_operand(
    values: npt.ArrayLike,
    format: FloatFormat,
    scaling: str,
    *,
    square: bool = False,
    scale: npt.ArrayLike | None = None,
) -> tuple[Array, np.float32]:
    """Return a matrix rounded, and the inverse of its scales; both float32.

    Args:
        values: float32 of shape (m, k).
        format: float8; formats of blocks have their own.
        scaling: "tensorwise" or "delayed" (one scale), "rowwise" (one per row), "block128" (one per 128 values of a
            row), or a name of ``BLOCK_FORMATS``.
        square: with "block128", one scale per 128 x 128 values, as weights have.
        scale: the one scale, float32; None computes it from the present largest magnitude.
    """
    given = np.asarray(values, np.float32)
    if scaling in BLOCK_FORMATS:
        return round_blocks(given, BLOCK_FORMATS[scaling]), np.float32(1)
    if scaling == "rowwise":
        return _round_tiles(given, format, 1, max(given.shape[1], 1)), np.float32(1)
    if scaling == "block128":
        return _round_tiles(given, format, BLOCK if square else 1, BLOCK), np.float32(1)
    if scale is None:
        return round_scaled(given, format)
    return round_by(given, format, scale)


def round_by(values: Array, format: FloatFormat, scale: npt.ArrayLike) -> tuple[Array, np.float32]:
    """Return values rounded by a scale that is known beforehand, and its inverse; larger values saturate.

    Saturation makes an inf finite, so the inverse is nan where a value is not.
    """
    known = np.asarray(scale, np.float32)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(values), initial=np.float32(0))
        rounded = round_to(values * known, format, saturate=True)
        return rounded, np.float32(1 / known if np.isfinite(amax) else np.nan)


def _round_tiles(values: Array, format: FloatFormat, high: int, wide: int) -> Array:
    """Scale each tile of ``high`` x ``wide`` values by a power of two; zeros fill the last tiles."""
    m, k = values.shape
    padded = np.pad(values, ((0, -m % high), (0, -k % wide)))
    tiles = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(tiles), axis=(1, 3), keepdims=True, initial=np.float32(0))
        scale = np.minimum(np.float32(format.max) / amax, np.float32(LARGEST_SCALE))
        scale = (scale.view(np.uint32) & np.uint32(_SIGN_AND_EXPONENT)).view(np.float32)
        rounded: Array = round_to(tiles * scale, format) * (np.float32(1) / scale)
    return rounded.reshape(padded.shape)[:m, :k]
