"""What a gradient's counts mean in float16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..backend.recording import BUCKETS

SMALLEST, NORMAL, LARGEST = -24, -14, 15
"""Exponents of float16: of its smallest number, of its smallest normal one, of its largest."""

_SUBNORMAL32, _FIRST, _ABOVE = 1, 2, 144  # the bucket below 2**-126, that of 2**-126, that of (65504, 2**16)
_INF, _NAN = BUCKETS - 2, BUCKETS - 1


@dataclass(frozen=True)
class Distribution:
    """One gradient's values, counted.

    Attributes:
        zero, inf, nan: how many are.
        overflow: finite values above 65504.
        exponents: exponent e → finite values from 2**e to below 2**(e+1), of either sign; -127 holds all below 2**-126.
    """

    zero: int
    inf: int
    nan: int
    overflow: int
    exponents: dict[int, int]

    @classmethod
    def of(cls, counts: Sequence[int]) -> Distribution:
        """Read a backend's counts."""
        exponents: dict[int, int] = {}
        for place, held in enumerate(counts[_SUBNORMAL32:_INF], _SUBNORMAL32):
            if held:
                exponent = place - _FIRST - 126 - (place >= _ABOVE)
                exponents[exponent] = exponents.get(exponent, 0) + int(held)
        overflow = sum(counts[_ABOVE:_INF])
        return cls(int(counts[0]), int(counts[_INF]), int(counts[_NAN]), int(overflow), exponents)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Distribution:
        """Read what :meth:`to_json` gave."""
        exponents = {int(exponent): int(count) for exponent, count in saved["exponents"].items()}
        return cls(int(saved["zero"]), int(saved["inf"]), int(saved["nan"]), int(saved["overflow"]), exponents)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the counts that float16 decides."""
        return {
            "zero": self.zero, "inf": self.inf, "nan": self.nan,
            "flushed": self.flushed, "subnormal": self.subnormal, "overflow": self.overflow,
            "exponents": {str(exponent): count for exponent, count in sorted(self.exponents.items())},
        }  # fmt: skip

    def between(self, low: int, high: int) -> int:
        """Return how many finite values lie from 2**low to below 2**high."""
        return sum(count for exponent, count in self.exponents.items() if low <= exponent < high)

    @property
    def flushed(self) -> int:
        """Values that are not zero and below 2**-24, which float16 would flush to zero."""
        return self.between(-1000, SMALLEST)

    @property
    def subnormal(self) -> int:
        """Values from 2**-24 to below 2**-14, which float16 holds with fewer bits."""
        return self.between(SMALLEST, NORMAL)

    @property
    def there(self) -> int:
        """Finite values that are not zero: what shares are of."""
        return sum(self.exponents.values())

    @property
    def finite(self) -> bool:
        """Whether no value is inf or nan."""
        return not (self.inf or self.nan)

    def share(self, count: int) -> float | None:
        """Return ``count`` as a share of the finite values that are not zero; None where there is none."""
        return count / self.there if self.there else None

    def plus(self, other: Distribution) -> Distribution:
        """Return both together."""
        exponents = dict(self.exponents)
        for exponent, count in other.exponents.items():
            exponents[exponent] = exponents.get(exponent, 0) + count
        return Distribution(
            self.zero + other.zero, self.inf + other.inf, self.nan + other.nan, self.overflow + other.overflow,
            exponents,
        )  # fmt: skip


def all_finite(counts: Sequence[int]) -> bool:
    """Tell from a backend's counts whether no value is inf or nan."""
    return not any(counts[_INF:])


EMPTY = Distribution(0, 0, 0, 0, {})
