"""Rounding an optimizer's moments to what ``Policy.state_dtype`` keeps of them. The reference, on numpy arrays.

Both forms round stochastically, by ``rounding.noise`` with the key of the parameter's name and the moment's
(:func:`moment_key`), so that moments are right on average: a second moment under ``beta2=0.999`` changes by a
thousandth per step, less than half a last place of 8 significant bits. Numbers that the form holds stay as they are,
so that moments that are read, saved and set again are kept bit for bit.

``bfloat16`` is ``rounding.stochastic``. ``float8`` keeps E4M3 numbers (OCP 8-bit Floating Point Specification 1.0) with
one scale for :data:`BLOCK` of them in row-major order, a power of two that leaves the largest below 256, as block-wise
8-bit optimizers do (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, arXiv:2110.02861). Second
moments need twice the exponents that E4M3 has (Peng et al., "FP8-LM", 2023, arXiv:2310.18313): their square roots are
kept, between whose squares they are rounded; one above zero never becomes zero, which an update divides by. A float8
moment has at most 8 significant bits and so is a bfloat16 number.
"""

from __future__ import annotations

from typing import Any

from . import rounding

Array = Any
"""A numpy array."""

BLOCK = 256
"""Numbers that share a scale."""

TOP_EXPONENT = 7
"""Of the largest number of a block, divided by its scale."""

SMALLEST_EXPONENTS = {False: -117, True: -54}
"""Of a scale, for moments and for square roots: what is above zero stays a normal float32 number."""

NOT_A_NUMBER = 0x7F
"""E4M3's code; an infinite moment becomes it too."""

MOMENTS = {
    "momentum": False,
    "velocity": False,
    "first_moment": False,
    "second_moment": True,
    "max_second_moment": True,
}
"""Framework-neutral name of a moment → whether it is an average of squares. A ``velocity`` is a momentum that includes
the learning rate and points downhill.
"""


def moment_key(name: str, moment: str) -> int:
    """Return the key of a moment, 32 bits.

    Args:
        name: the parameter's.
        moment: one of :data:`MOMENTS`.
    """
    return rounding.param_key(f"{name}/{moment}")


def kept(values: Array, dtype: str, moment: str, key: int, step: int) -> Array:
    """Return float32 moments as they are kept, as float32 again.

    Args:
        values: of one parameter.
        dtype: ``Policy.state_dtype``.
        moment: one of :data:`MOMENTS`.
        key: from :func:`moment_key`.
        step: from ``rounding.step_key``.
    """
    if dtype == "bfloat16":
        return rounding.stochastic(values, key, step)
    squares = MOMENTS[moment]
    return unpack(*pack(values, squares, key, step), squares, values.shape)


def pack(values: Array, squares: bool, key: int, step: int) -> tuple[Array, Array]:
    """Return the E4M3 codes of float32 moments, uint8 of their shape, and the scales of their blocks, float32.

    Args:
        values: of one parameter.
        squares: they are averages of squares, 0 or more.
        key: from :func:`moment_key`.
        step: from ``rounding.step_key``.
    """
    import numpy as np

    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    blocks = np.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)
    finite = np.isfinite(blocks)
    roots = np.sqrt(np.abs(np.where(finite, blocks, 0))) if squares else np.abs(np.where(finite, blocks, 0))
    scales = _scales(roots.max(axis=1, initial=0), squares)
    scaled = (roots / scales[:, None]).astype(np.float32)
    # Numbers from 8 steps of the grid to 16 have one exponent; below the smallest exponent the steps are the same.
    exponent = np.maximum(scaled.view(np.int32) >> 23, 121) - 127
    spacing = np.ldexp(np.float32(1), exponent - 3)
    count = np.floor(scaled / spacing)
    low = count * spacing
    noise = rounding.noise(blocks.size, key, step).reshape(blocks.shape).astype(np.float32)
    if squares:
        square = blocks / scales[:, None] / scales[:, None]
        up = noise * ((low + spacing) ** 2 - low**2) < np.float32(65536) * (square - low**2)
        up |= (count == 0) & (blocks > 0)
    else:
        up = noise < np.float32(65536) * ((scaled - low) / spacing)
    codes = ((exponent + 6) * 8 + count.astype(np.int32) + up).astype(np.uint8)
    codes |= np.where(np.signbit(blocks) & (codes > 0), 0x80, 0).astype(np.uint8)
    codes = np.where(finite, codes, np.uint8(NOT_A_NUMBER))
    return codes.reshape(-1)[: flat.size].reshape(np.shape(values)), scales


def _scales(largest: Array, squares: bool) -> Array:
    import numpy as np

    exponent = (np.ascontiguousarray(largest, np.float32).view(np.int32) >> 23) - 127 - TOP_EXPONENT
    return np.ldexp(np.float32(1), np.maximum(exponent, SMALLEST_EXPONENTS[squares])).astype(np.float32)


def unpack(codes: Array, scales: Array, squares: bool, shape: tuple[int, ...]) -> Array:
    """Return the float32 moments that :func:`pack` kept."""
    import numpy as np

    table = np.array([_number(code) for code in range(256)], np.float32)
    values = table[codes.reshape(-1)] * np.repeat(scales, BLOCK)[: codes.size]
    return (values * values if squares else values).reshape(shape)


def _number(code: int) -> float:
    """Return the number of an E4M3 code."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code & 0x7F == NOT_A_NUMBER:
        return float("nan")
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 0x80 else size
