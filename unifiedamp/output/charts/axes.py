"""An axis of a chart: where a value lies on it, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .drawing import WIDTH, Shape, line, text

TICKS = 6
"""At most, on an axis."""
PAD = 0.04
"""Of the range, left free at both ends."""
ROOM = 8.0
"""Units from the chart's edge within which a tick's text stands beside its tick."""
MOST = 1e250
"""What is larger is drawn there, so that sums and powers near it are finite; likewise what is below its inverse."""
ALIKE = 1e-9
"""A range that is a smaller share of its values is none."""
DECADE = 10.0
"""Ratio of largest to smallest from which a logarithmic axis shows more than a linear one."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A range of values.

    Attributes:
        label: what the values are.
        low, high: its ends; for a logarithmic axis, their logarithms.
        base: of the logarithm; 0 for a linear axis.
    """

    label: str
    low: float
    high: float
    base: int = 0

    def place(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high end."""
        there = max(-MOST, min(MOST, value))
        if self.base:
            there = _log(max(there, 1 / MOST), self.base)
        return (there - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The ticks: (value, text)."""
        if not self.base:
            return _linear_ticks(self.low, self.high)
        return _power_ticks(self.low, self.high) if self.base == 2 else _decade_ticks(self.low, self.high)


def linear(values: Iterable[float], label: str, *, pad: float = PAD) -> Axis:
    """Return a linear axis that holds the values."""
    low, high = _ends(values)
    size = max(abs(low), abs(high))
    if high - low <= max(ALIKE * size, 1 / MOST):
        room = 0.1 * size if size > 1 / MOST else 1.0
    else:
        room = pad * (high - low)
    return Axis(label, low - room, high + room)


def logarithmic(values: Iterable[float], label: str, base: int = 10) -> Axis:
    """Return a logarithmic axis that holds the values, all above 0."""
    low, high = (_log(max(value, 1 / MOST), base) for value in _ends(values))
    room = PAD * (high - low) or 0.5
    return Axis(label, low - room, high + room, base)


def fitting(values: Sequence[float], label: str) -> Axis:
    """Return a logarithmic axis for positive values that differ by much, else a linear one."""
    low, high = _ends(values)
    return logarithmic(values, label) if low > 0 and high / low >= DECADE else linear(values, label)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    kept = [max(-MOST, min(MOST, value)) for value in values if math.isfinite(value)] or [0.0]
    return min(kept), max(kept)


def _log(value: float, base: int) -> float:
    return math.log2(value) if base == 2 else math.log10(value)


def _linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    step = _round_step((high - low) / (TICKS - 1))
    first, last = math.ceil(low / step - ALIKE), math.floor(high / step + ALIKE)
    return [(place * step, _plain(place * step, step)) for place in range(first, last + 1)]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1.0, 2.0, 5.0, 10.0) if times * power >= least * (1 - 1e-9))


def _plain(value: float, step: float) -> str:
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    return f"{value + 0.0:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _power_ticks(low: float, high: float) -> list[tuple[float, str]]:
    first, last = math.ceil(low), math.floor(high)
    step = max(1, math.ceil((last - first) / (TICKS - 1)))
    exponents = range(first, last + 1, step)
    return [(2.0**each, f"2{str(each).translate(SUPERSCRIPT)}") for each in exponents]


def _decade_ticks(low: float, high: float) -> list[tuple[float, str]]:
    step = max(1, math.ceil((high - low) / TICKS))
    first, last = math.floor(low) if step == 1 else math.ceil(low), math.floor(high)
    times = (1, 2, 5) if high - low < 2 else (1, 3) if high - low < 3 else (1,)
    found = [each * 10.0**power for power in range(first, last + 1, step) for each in times]
    return [(value, f"{value:g}") for value in found if low <= math.log10(value) <= high]


def frame(x: Axis, y: Axis, box: tuple[float, float, float, float]) -> list[Shape]:
    """Return grid, ticks and labels of two axes around a box: its left, top, right and bottom."""
    left, top, right, bottom = box
    shapes = [text(0, 13, y.label, "label")]
    for value, words in y.ticks:
        height = bottom - y.place(value) * (bottom - top)
        shapes += [line(left, height, right, height, "grid"), text(left - 6, height + 4, words, "tick", "end")]
    return [*shapes, *below(x, box)]


def below(x: Axis, box: tuple[float, float, float, float]) -> list[Shape]:
    """Return the axis at the bottom of a box."""
    left, _, right, bottom = box
    shapes = [line(left, bottom, right, bottom, "axis")]
    for value, words in x.ticks:
        there = left + x.place(value) * (right - left)
        anchor = "end" if there > WIDTH - ROOM else "start" if there < ROOM else "middle"
        shapes += [line(there, bottom, there, bottom + 4, "axis"), text(there, bottom + 18, words, "tick", anchor)]
    return [*shapes, text(right, bottom + 36, x.label, "label", "end")]
