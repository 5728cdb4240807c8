"""What a dense layer in float8 must give, in numpy's float64, written without looking at any backend.

The rounding is worked out from the formats' definitions (Micikevicius et al., "FP8 Formats for Deep Learning",
arXiv:2209.05433): e4m3 has 3 bits after the binary point, exponents from -6 and the largest number 448; e5m2 has 2
bits, exponents from -14 and the largest number 57344. bfloat16 has 7 bits and float32's exponents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, by what it takes to round to it."""

    bits: int
    lowest_exponent: int
    largest: float

    def round(self, values: npt.ArrayLike) -> Array:
        """Return the nearest numbers of the format, ties to even; beyond the largest, nan."""
        given = np.asarray(values, np.float64)
        _, exponents = np.frexp(given)
        steps = np.exp2(np.maximum(exponents - 1, self.lowest_exponent) - self.bits)
        out = np.rint(given / steps) * steps
        return np.where(np.abs(out) <= self.largest, out, np.nan)

    def scaled(self, values: npt.ArrayLike) -> tuple[Array, float]:
        """Return the values scaled to the format's range and rounded, and their scale (1 for zeros)."""
        amax = float(np.max(np.abs(values)))
        scale = self.largest / amax if amax else 1.0
        return self.round(np.asarray(values, np.float64) * scale), scale

    def nearest(self, values: npt.ArrayLike) -> Array:
        """Return what is left of ``values`` after scaling, rounding and scaling back."""
        rounded, scale = self.scaled(values)
        return rounded / scale


E4M3 = Format(3, -6, 448.0)
E5M2 = Format(2, -14, 57344.0)
BFLOAT16 = Format(7, -126, 3.3895313892515355e38)


def forward(x: Any, weight: Any, bias: Any) -> Array:
    """Return ``x @ weight + bias`` for x of shape (rows, inputs) and weight of shape (inputs, outputs)."""
    return BFLOAT16.round(E4M3.nearest(x) @ E4M3.nearest(weight) + bias)


def backward(x: Any, weight: Any, gradient: Any) -> tuple[Array, Array, Array]:
    """Return the gradients of x, weight and bias for the output's gradient, a bfloat16 array."""
    rounded = E5M2.nearest(gradient)
    dx = BFLOAT16.round(rounded @ E4M3.nearest(weight).T)
    return dx, E4M3.nearest(x).T @ rounded, np.asarray(gradient, np.float64).sum(0)
