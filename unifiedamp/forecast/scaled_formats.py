"""Formats whose scales belong to rows and blocks of a matrix: what a forecast counts for each.

A backend counts values times the scales of their rows or blocks (``unifiedamp.backend.forecast.SCALINGS``). What a
format loses then follows from those counts as it does for float16, with one further factor for all: a power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..formats import BLOCK_FORMATS, FLOAT_FORMATS, FloatFormat


@dataclass(frozen=True)
class ScaledFormat:
    """A format with a scale for each row or block.

    Attributes:
        scaling: of ``SCALINGS``.
        element: of the numbers.
        factor: that the counted values are multiplied by.
        recipe: of ``mixed_float8``, where it runs otherwise than emulated; else empty.
        bytes: per number, without its share of the scales.
    """

    scaling: str
    element: FloatFormat
    factor: float
    recipe: str
    bytes: float


_BITS = {"float8_e4m3fn": 8, "float8_e5m2": 8, "float6_e2m3fn": 6, "float6_e3m2fn": 6, "float4_e2m1fn": 4, "int8": 8}

SCALED_FORMATS: dict[str, ScaledFormat] = {
    "float8_rowwise": ScaledFormat("row", FLOAT_FORMATS["float8_e4m3fn"], 1.0, "rowwise", 1),
    "float8_block128": ScaledFormat("block128", FLOAT_FORMATS["float8_e4m3fn"], 1.0, "block128", 1),
    **{
        name: ScaledFormat(
            "block32" if format.scale == "e8m0" else "block16", format.element,
            2.0**format.element.max_exponent if format.scale == "e8m0" else 1.0, "", _BITS[format.element.name] / 8,
        )
        for name, format in BLOCK_FORMATS.items()
        if format.scale != "float32"
    },
}  # fmt: skip
"""Name, as ``amp.forecast(formats=...)`` takes it → format."""


def scalings_of(formats: Sequence[str]) -> tuple[str, ...]:
    """Return what must be counted for these formats."""
    return tuple(dict.fromkeys(SCALED_FORMATS[name].scaling for name in formats if name in SCALED_FORMATS))
