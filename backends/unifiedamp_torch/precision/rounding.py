"""Rounding float32 tensors to a format, by torch operations; bit-equal to ``unifiedamp.formats.round_to``.

Arithmetic on bits instead of casts: Inductor drops a cast to float16 or bfloat16 and back. Nothing is read from the
device, so that dynamo traces it without a break and a CUDA graph captures it.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from unifiedamp.backend import FLOAT_FORMATS, FloatFormat

_SIGN, _MAGNITUDE, _FRACTION, _LEADING_BIT, _INFINITY = -(2**31), 0x7FFFFFFF, 0x7FFFFF, 0x800000, 0x7F800000
_NAN, _MANTISSA_BITS, _EXPONENT_BIAS = 0x7FC00000, 23, 127


def _bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


_LIMITS = {name: (_bits(form.min_normal), _bits(form.max)) for name, form in FLOAT_FORMATS.items()}
"""Name of a format → the bits of its smallest normal and its largest number; dynamo traces no ``struct.pack``."""


def round_to(values: torch.Tensor, format: FloatFormat, saturate: bool = False) -> torch.Tensor:
    """Return the nearest numbers of the format, ties to even, as float32.

    Args:
        values: float32, any shape.
        format: of the result's numbers.
        saturate: numbers beyond ``format.max``, inf included, become ``format.max``.
    """
    smallest, largest = _LIMITS[format.name]
    bits = values.view(torch.int32)
    sign, magnitude = bits & _SIGN, bits & _MAGNITUDE
    dropped = _MANTISSA_BITS - format.mantissa_bits
    rounded = ((magnitude + (2 ** (dropped - 1) - 1) + ((magnitude >> dropped) & 1)) >> dropped) << dropped
    if format.min_exponent > 1 - _EXPONENT_BIAS:
        rounded = torch.where(magnitude < smallest, _subnormal(magnitude, format), rounded)
    beyond = largest if saturate else {"inf": _INFINITY, "nan": _NAN, "saturate": largest}[format.overflow]
    rounded = torch.where(rounded > largest, beyond, rounded)
    rounded = torch.where(magnitude > _INFINITY, _NAN, rounded)
    return (rounded | sign).view(torch.float32)


def _subnormal(magnitude: torch.Tensor, format: FloatFormat) -> torch.Tensor:
    """Round to a multiple of the smallest number: how many of them is a shift of the fraction with its leading bit."""
    fraction = (magnitude & _FRACTION) | _LEADING_BIT
    lowest = _MANTISSA_BITS - format.mantissa_bits + format.min_exponent + _EXPONENT_BIAS
    shift = (lowest - (magnitude >> _MANTISSA_BITS)).clamp(1, _MANTISSA_BITS + 2)
    half = torch.bitwise_left_shift(torch.ones_like(shift), shift - 1)
    last = torch.bitwise_right_shift(fraction, shift) & 1
    count = torch.bitwise_right_shift(fraction + half - 1 + last, shift)
    return (count.float() * format.min_subnormal).view(torch.int32)


class Rounded(torch.autograd.Function):
    """Rounds in the forward pass, and the gradient in the backward pass; differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, format: FloatFormat) -> torch.Tensor:
        """Return float32 ``values`` rounded to the format."""
        ctx.format = format
        return round_to(values, format)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient rounded to the format."""
        return Rounded.apply(gradient, ctx.format), None  # type: ignore[no-untyped-call]  # torch leaves it untyped


def rounded(values: torch.Tensor, format: FloatFormat) -> torch.Tensor:
    """Return float32 of ``values`` rounded to the format, as is the gradient that arrives for it."""
    return Rounded.apply(values.float(), format)  # type: ignore[no-any-return,no-untyped-call]  # torch leaves it untyped
