"""What is added up over the steps of a forecast: counts, and what each float8 recipe would have lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..backend.forecast import NON_FINITE, PLACES, ProductCounts, TensorCounts
from ..formats import FLOAT_FORMATS, LARGEST_SCALE, FloatFormat
from .losses import Rounding, rounding, rounding_at

RECIPES = ("tensorwise", "delayed")
"""How the scale of a float8 tensor is found: from its present largest value, or from those of the steps before."""
HISTORY = 1024
"""Steps whose largest values the recipe "delayed" looks at; the default of Transformer Engine."""
FLOAT8 = {
    "weight": FLOAT_FORMATS["float8_e4m3fn"],
    "input": FLOAT_FORMATS["float8_e4m3fn"],
    "gradient": FLOAT_FORMATS["float8_e5m2"],
}
"""Operand → its float8 format."""
TOGETHER = 256
"""Operands that are rounded at a time."""
_SUMS = ("values", "flushed", "subnormal", "overflow", "error")


@dataclass
class TensorTotals:
    """One tensor over all steps.

    Attributes:
        counts: as in ``TensorCounts``, added up.
        largest: the largest finite absolute value.
        non_finite: steps in which it held inf or nan; nothing else is counted of them, as such a step is not applied.
        float8: recipe → sums as in ``Rounding``; empty for what float8 products do not take.
        scaled: scaling → counts and the largest value, as in ``TensorCounts.scaled``.
    """

    counts: Any = field(default_factory=lambda: np.zeros(PLACES, np.int64))
    largest: float = 0.0
    non_finite: int = 0
    float8: dict[str, list[float]] = field(default_factory=dict)
    scaled: dict[str, TensorCounts] = field(default_factory=dict)
    _history: list[float] = field(default_factory=list)

    def add(self, seen: TensorCounts) -> bool:
        """Add a step's counts; return whether it is one that counts for float8."""
        if not math.isfinite(seen.largest) or seen.counts[NON_FINITE:].any():
            self.non_finite += 1
            return False
        self.counts += seen.counts
        self.largest = max(self.largest, seen.largest)
        for scaling, found in seen.scaled.items():
            self.scaled[scaling] = found if scaling not in self.scaled else self.scaled[scaling].plus(found)
        return seen.largest > 0

    def scales(self, amax: float, format: FloatFormat) -> list[float]:
        """Return the scale of each recipe in a step with this largest value, which then belongs to the past."""
        before = max(self._history[-HISTORY:], default=amax)
        self._history.append(amax)
        return [min(format.max / each, LARGEST_SCALE) for each in (amax, before)]

    def add_float8(self, sums: Sequence[Sequence[float]]) -> None:
        """Add a step's sums for each recipe."""
        for recipe, found in zip(RECIPES, sums, strict=True):
            old = self.float8.get(recipe, [0.0] * len(_SUMS))
            self.float8[recipe] = [a + b for a, b in zip(old, found, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        scaled = {name: {"counts": _sparse(each.counts), "largest": each.largest} for name, each in self.scaled.items()}
        found = {"counts": _sparse(self.counts), "largest": self.largest, "non_finite": self.non_finite}
        return {**found, "float8": self.float8, "scaled": scaled}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> TensorTotals:
        """Read what :meth:`to_json` returned."""
        found = cls(largest=saved["largest"], non_finite=saved["non_finite"], float8=dict(saved["float8"]))
        found.counts = _dense(saved["counts"])
        for name, each in saved["scaled"].items():
            found.scaled[name] = TensorCounts(_dense(each["counts"]), each["largest"])
        return found


def rounding_of(tensors: Sequence[TensorTotals], format: FloatFormat, scales: tuple[float, ...]) -> Rounding:
    """Return what rounding all values of some tensors, of one or more, to a format does to each at each scale."""
    counts, largest = np.stack([each.counts for each in tensors]), np.array([each.largest for each in tensors])
    return rounding_at(counts, largest, format, scales)


def _sparse(counts: Any) -> dict[str, int]:
    places = np.flatnonzero(counts)
    return dict(zip(map(str, places.tolist()), counts[places].tolist(), strict=True))


def _dense(saved: Mapping[str, int]) -> Any:
    counts = np.zeros(PLACES, np.int64)
    counts[[int(place) for place in saved]] = list(saved.values())
    return counts


@dataclass
class LayerTotals:
    """One layer over all steps.

    Attributes:
        layer, kind, float8, holds_layers: as in ``ProductCounts``.
        work: multiplications of all forward passes.
        tensors: name → totals.
    """

    layer: str
    kind: str
    float8: str
    work: int = 0
    tensors: dict[str, TensorTotals] = field(default_factory=dict)
    holds_layers: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        tensors = {name: each.to_json() for name, each in self.tensors.items()}
        about = {"layer": self.layer, "kind": self.kind, "float8": self.float8, "holds_layers": self.holds_layers}
        return {**about, "work": self.work, "tensors": tensors}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> LayerTotals:
        """Read what :meth:`to_json` returned."""
        tensors = {name: TensorTotals.from_json(each) for name, each in saved["tensors"].items()}
        return cls(saved["layer"], saved["kind"], saved["float8"], saved["work"], tensors, saved["holds_layers"])


class Totals:
    """All layers, by path, in the order in which they ran first."""

    def __init__(self, layers: Sequence[LayerTotals] = ()) -> None:
        self._layers = {each.layer: each for each in layers}
        self._operands: dict[str, list[_Operand]] = {}

    @property
    def layers(self) -> dict[str, LayerTotals]:
        """Path → totals of the layer."""
        self._round()
        return self._layers

    def add(self, seen: Sequence[ProductCounts]) -> None:
        """Add a step."""
        for one in seen:
            layer = self._layers.setdefault(
                one.layer, LayerTotals(one.layer, one.kind, one.float8, holds_layers=one.holds_layers)
            )
            layer.work += one.work
            for name, counts in one.tensors.items():
                totals = layer.tensors.setdefault(name, TensorTotals())
                if totals.add(counts) and name in FLOAT8:
                    operand = _Operand(totals, counts, totals.scales(counts.largest, FLOAT8[name]))
                    self._operands.setdefault(FLOAT8[name].name, []).append(operand)
        if sum(map(len, self._operands.values())) >= TOGETHER:
            self._round()

    def _round(self) -> None:
        """Add what the steps lost in float8 to the totals of their tensors; for many at once it takes little longer."""
        operands, self._operands = self._operands, {}
        for format, rows in operands.items():
            _add_float8(rows, FLOAT_FORMATS[format])


class _Operand(NamedTuple):
    """An operand of a float8 product in one step, and its scale under each recipe."""

    totals: TensorTotals
    seen: TensorCounts
    scales: list[float]


def _add_float8(rows: Sequence[_Operand], format: FloatFormat) -> None:
    counts, largest = np.stack([each.seen.counts for each in rows]), np.array([each.seen.largest for each in rows])
    found = rounding(counts, largest, format, np.array([each.scales for each in rows]).T, saturate=True)
    values = np.broadcast_to(found.values, found.error.shape)
    sums = np.stack([values, found.flushed, found.subnormal, found.overflow, found.error], -1)
    for place, each in enumerate(rows):
        each.totals.add_float8(sums[:, place].tolist())
