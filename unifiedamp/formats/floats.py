"""Floating-point formats of 16 bits and fewer, by what it takes to round to them.

Sources: IEEE 754 (float16), the OCP 8-bit Floating Point Specification 1.0 (float8), the OCP Microscaling Formats
Specification 1.0 (float6, float4 and int8, the elements of MX blocks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format with subnormal numbers and a signed zero.

    Attributes:
        name: as ``ml_dtypes`` and torch name it.
        exponent_bits, mantissa_bits: widths of the fields; the leading bit is not stored.
        bias: subtracted from the exponent field.
        max: the largest finite number.
        overflow: what a number becomes that rounds to more than ``max``: "inf", "nan" (a format without inf) or
            "saturate" to ``max`` (a format with neither). A nan stays nan in each, so that no format hides one.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max: float
    overflow: str

    @property
    def has_inf(self) -> bool:
        """Whether the format has infinities."""
        return self.overflow == "inf"

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest number, ``emax`` of the OCP specifications."""
        return math.frexp(self.max)[1] - 1

    @property
    def min_normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number, and the distance between neighbours below ``min_normal``."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)


FLOAT_FORMATS: dict[str, FloatFormat] = {
    each.name: each
    for each in (
        FloatFormat("float16", 5, 10, 15, 65504.0, "inf"),
        FloatFormat("bfloat16", 8, 7, 127, (2 - 2.0**-7) * 2.0**127, "inf"),
        FloatFormat("float8_e4m3fn", 4, 3, 7, 448.0, "nan"),
        FloatFormat("float8_e5m2", 5, 2, 15, 57344.0, "inf"),
        FloatFormat("float6_e2m3fn", 2, 3, 1, 7.5, "saturate"),
        FloatFormat("float6_e3m2fn", 3, 2, 3, 28.0, "saturate"),
        FloatFormat("float4_e2m1fn", 2, 1, 1, 6.0, "saturate"),
        # The elements of MXINT8, k / 64 for k from -127 to 127: one exponent, and below it the same distance.
        FloatFormat("int8", 1, 6, 1, 127 / 64, "saturate"),
    )
}
"""Name → format."""

LARGEST_SCALE = 2.0**126
"""The scale of a tensor of zeros; its inverse is still a normal float32 number."""
