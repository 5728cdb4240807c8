"""Rounding float32 weights to bfloat16: stochastically, and with a compensation; and float32 values to any format. The
reference, on numpy arrays.

Backends round on their own tensors and give the same bits; one that has no operations on bits calls these.

The random numbers are a function of the seed, the count of applied steps, the parameter's name and the element's
place, so that they are the same eager, compiled, after a resume and on each framework, and need no state beside the
count. They are two rounds of the finalizer of MurmurHash3 (``fmix32``, Appleby, public domain), which is made of
operations on 32-bit integers that every framework has.
"""

from __future__ import annotations

import zlib
from typing import Any

from ..formats import FLOAT_FORMATS, FloatFormat
from ..policy import Float8Recipe

Array = Any
"""A numpy array."""

FMIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))
"""``fmix32``: for each pair, ``x ^= x >> shift`` and then ``x *= factor``, modulo 2**32."""

NOISE_BITS = 16
"""Random bits for each element: as many as bfloat16 has fewer than float32."""

MASK = 2**32 - 1


def fmix32(number: int) -> int:
    """Return the finalizer of MurmurHash3 of a 32-bit number."""
    for shift, factor in FMIX:
        number = ((number ^ (number >> shift)) * factor) & MASK
    return number


def step_key(seed: int, step: int) -> int:
    """Return the key of a step, 32 bits.

    Args:
        seed: ``Policy.update_seed``.
        step: how many steps the optimizer has applied before.
    """
    return fmix32((fmix32(seed) + step) & MASK)


def param_key(name: str) -> int:
    """Return the key of a parameter, 32 bits: the CRC of its name."""
    return zlib.crc32(name.encode())


def noise(size: int, param: int, step: int) -> Array:
    """Return ``size`` random numbers from 0 to 2**16 - 1, uint32: ``fmix32(fmix32(i + param) + step) >> 16`` for the
    element ``i`` in row-major order.

    Args:
        size: of the parameter.
        param: from :func:`param_key`.
        step: from :func:`step_key`.
    """
    import numpy as np

    mixed = np.arange(size, dtype=np.uint32)
    for key in (param, step):
        mixed += np.uint32(key)
        for shift, factor in FMIX:
            mixed ^= mixed >> np.uint32(shift)
            mixed *= np.uint32(factor)
    return mixed >> np.uint32(32 - NOISE_BITS)


def stochastic(values: Array, param: int, step: int) -> Array:
    """Return float32 values rounded to bfloat16 up or down, each with a probability in proportion to the distance;
    float32. Values that bfloat16 holds, inf and nan stay.

    The noise is added to the bits that bfloat16 lacks, which are then cut off: a carry rounds away from zero.
    """
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    noisy = bits + noise(bits.size, param, step).reshape(bits.shape)
    rounded = (noisy & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), np.float32("nan"), rounded).astype(np.float32)


def nearest(values: Array) -> Array:
    """Return float32 values rounded to the nearest bfloat16, ties to even; float32."""
    return to_format(values, FLOAT_FORMATS["bfloat16"])


def to_format(values: Array, format: FloatFormat) -> Array:
    """Return float32 values rounded to the nearest numbers of a format, ties to even; float32."""
    from ..formats.rounding import round_to

    return round_to(values, format)


def to_operand(
    values: Array, recipe: Float8Recipe, *, gradient: bool = False, weight: bool = False, scale: Array | None = None
) -> tuple[Array, Array]:
    """Return a matrix rounded as an operand of a product that sums over its last dimension, and the inverse of its
    scales; float32. See ``unifiedamp.formats.scaled_rounding``.

    Args:
        values: float32 of shape (m, k).
        recipe: of the layer.
        gradient, weight: what the matrix is, if not an input.
        scale: of delayed scaling, where it is known; None for the present largest magnitude.
    """
    from ..formats.scaled_rounding import round_operand

    format = FLOAT_FORMATS["float8_e5m2" if gradient and recipe.gradient_format == "e5m2" else "float8_e4m3fn"]
    return round_operand(values, format, recipe.block_format or recipe.scaling, square=weight, scale=scale)


def scale_values(matrix: Array, scaling: str, square: bool = False) -> Array:
    """Return a matrix times the scales of its rows or blocks; see ``forecast.SCALINGS``. ``square``: of weights."""
    from ..formats.scaling import scale_values

    return scale_values(matrix, scaling, square)


def kahan_split(values: Array) -> tuple[Array, Array]:
    """Return the bfloat16 weight of float32 values, and the bfloat16 compensation of what it leaves out; both float32.

    Their sum is exact in float32, and splitting it gives the same two again: so weights that are saved as their sum
    go on bit for bit. Where the weight is not finite, the compensation is 0.
    """
    import numpy as np

    weight = nearest(values)
    with np.errstate(invalid="ignore", over="ignore"):
        total = weight + nearest(np.asarray(values, np.float32) - weight)
        # A compensation that was rounded up to half a last place is a tie, which may belong to the neighbour.
        weight = np.where(np.isfinite(total), nearest(total), weight)
        rest = total - weight
    return weight, np.where(np.isfinite(weight), rest, np.float32(0)).astype(np.float32)
