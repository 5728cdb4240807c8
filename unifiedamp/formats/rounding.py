"""Rounding float32 numbers to a format, in plain numpy: the reference of every backend's rounding.

All of it is arithmetic on the bits of float32 numbers, which no compiler or processor mode changes: compilers drop a
cast to a narrow dtype and back, and processors may treat subnormal float32 numbers as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .floats import LARGEST_SCALE, FloatFormat

Array = npt.NDArray[np.float32]

MANTISSA_BITS, EXPONENT_BIAS = 23, 127
SIGN, MAGNITUDE, FRACTION, LEADING_BIT, INFINITY = 0x80000000, 0x7FFFFFFF, 0x7FFFFF, 0x800000, 0x7F800000


def round_to(values: npt.ArrayLike, format: FloatFormat, saturate: bool = False) -> Array:
    """Return the nearest numbers of the format as float32, ties to even.

    Args:
        values: float32, any shape.
        format: one of ``FLOAT_FORMATS``.
        saturate: numbers beyond ``format.max``, inf included, become ``format.max`` (the saturating conversion of the
            OCP specifications); otherwise as ``format.overflow`` says. A nan stays nan, its payload does not.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    sign, magnitude = bits & np.uint32(SIGN), bits & np.uint32(MAGNITUDE)
    rounded = _normal(magnitude, MANTISSA_BITS - format.mantissa_bits)
    if format.min_exponent > 1 - EXPONENT_BIAS:
        small = magnitude < _bits(format.min_normal)
        rounded = np.where(small, _subnormal(magnitude, format), rounded)
    over = rounded > _bits(format.max)
    beyond = _bits(format.max if saturate else {"inf": np.inf, "nan": np.nan, "saturate": format.max}[format.overflow])
    rounded = np.where(over, beyond, rounded)
    rounded = np.where(magnitude > INFINITY, _bits(np.nan), rounded)
    return (rounded.astype(np.uint32) | sign).view(np.float32)


def _bits(value: Any) -> np.uint32:
    found: np.uint32 = np.float32(value).view(np.uint32)
    return found


def _normal(magnitude: Any, dropped: int) -> Any:
    """Round the last ``dropped`` bits away; a carry goes to the exponent, as it should."""
    last = (magnitude >> np.uint32(dropped)) & np.uint32(1)
    return (magnitude + np.uint32(2 ** (dropped - 1) - 1) + last) >> np.uint32(dropped) << np.uint32(dropped)


def _subnormal(magnitude: Any, format: FloatFormat) -> Any:
    """Round to a multiple of the smallest number: how many of them is a shift of the fraction with its leading bit."""
    exponent = (magnitude >> np.uint32(MANTISSA_BITS)).astype(np.int32)
    fraction = (magnitude & np.uint32(FRACTION)) | np.uint32(LEADING_BIT)
    shift = MANTISSA_BITS - format.mantissa_bits + (format.min_exponent + EXPONENT_BIAS - exponent)
    shift = np.clip(shift, 1, MANTISSA_BITS + 2).astype(np.uint32)
    last = (fraction >> shift) & np.uint32(1)
    count = (fraction + ((np.uint32(1) << (shift - np.uint32(1))) - np.uint32(1)) + last) >> shift
    return (count.astype(np.float32) * np.float32(format.min_subnormal)).view(np.uint32)


def round_scaled(values: npt.ArrayLike, format: FloatFormat) -> tuple[Array, np.float32]:
    """Return the values scaled to the format's range and rounded, and the inverse of their scale.

    One scale for the tensor, from its present largest magnitude ("current scaling" in NVIDIA's Transformer Engine,
    dynamic tensorwise scaling in torchao), as ``mixed_float8`` has it::

        scale = min(format.max / amax(|values|), 2**126)
        rounded = round_to(values * scale), inverse = 1 / scale

    A tensor of zeros keeps a finite scale. An inf or nan makes the scale 0 or nan and something in ``rounded`` or
    ``inverse`` inf or nan, so that nothing hides it.
    """
    given = np.asarray(values, np.float32)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(given), initial=np.float32(0))
        scale = np.minimum(np.float32(format.max) / amax, np.float32(LARGEST_SCALE))
        return round_to(given * scale, format), np.float32(1) / scale
