"""Horizontal bars and strips of cells: the label stands above, so that it has the whole width, also on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .axes import Axis, below
from .drawing import WIDTH, Drawing, Key, Shape, label_lines, line, path, rect, text

LEFT, RIGHT = 2.0, WIDTH - 2
LINE, BAR, GAP = 15.0, 13.0, 9.0
FOOT = 40.0
CELLS = 120
"""Cells of a strip, at most; more steps share a cell, which shows the largest of them."""
SHADES = 20
"""Shades of a cell; cells of one shade are one path."""


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        label: above it, at the left. said: above it, at the right.
        value: its end.
        kind: its class.
        low, high: ends of its whisker; None draws none.
    """

    label: str
    said: str
    value: float
    kind: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Strip:
    """A row of cells: its label, what is said at the right, and each cell's share (0 to 1; nan: nothing there)."""

    label: str
    said: str
    shares: Sequence[float]


def bars(
    title: str, description: str, axis: Axis, drawn: Sequence[Bar], limit: float | None = None,
    keys: Sequence[Key] = (), note: str = "",
) -> Drawing:  # fmt: skip
    """Return a chart of bars; ``limit`` is a value that a line across each bar marks."""
    shapes: list[Shape] = []
    top = 4.0
    for bar in drawn:
        top = _heading(shapes, bar.label, bar.said, top)
        width = max(1.0, _across(axis, bar.value) - LEFT)
        shapes.append(rect(LEFT, top, width, BAR, f"bar {bar.kind}", title=f"{bar.label}: {bar.said}"))
        if bar.low is not None and bar.high is not None:
            shapes.append(_whisker(axis, bar.low, bar.high, top))
        if limit is not None:
            place = _across(axis, limit)
            shapes.append(line(place, top - 2, place, top + BAR + 2, "limit"))
        top += BAR + GAP
    shapes += below(axis, (LEFT, 0, RIGHT, top))
    return Drawing(title, description, top + FOOT, shapes, keys, note)


def strips(
    title: str, description: str, drawn: Sequence[Strip], steps: Sequence[int], keys: Sequence[Key], note: str = ""
) -> Drawing:
    """Return a chart of strips; ``steps`` are the numbers of their cells."""
    shapes: list[Shape] = []
    top = 4.0
    for strip in drawn:
        top = _heading(shapes, strip.label, strip.said, top)
        shapes += _cells(joined(strip.shares), top)
        shapes.append(rect(LEFT, top, RIGHT - LEFT, BAR, "outline", title=f"{strip.label}: {strip.said}"))
        top += BAR + GAP
    ends = ((LEFT, "start", steps[0]), (RIGHT, "end", steps[-1])) if steps else ()
    shapes += [text(x, top + 12, f"step {step:,}", "tick", anchor) for x, anchor, step in ends]
    return Drawing(title, description, top + 22, shapes, keys, note)


def joined(shares: Sequence[float], cells: int = CELLS) -> list[float]:
    """Return at most ``cells`` shares: of those that share a cell the largest; nan where there is none."""
    count = min(cells, len(shares))
    edges = [round(place * len(shares) / count) for place in range(count + 1)] if count else []
    groups = [shares[first:last] for first, last in pairwise(edges)]
    return [max((each for each in group if not math.isnan(each)), default=math.nan) for group in groups]


def _heading(shapes: list[Shape], label: str, said: str, top: float) -> float:
    """Add the lines above a bar; return where the bar begins."""
    lines = label_lines(label)
    shapes += [text(LEFT, top + LINE * number - 4, words, "name") for number, words in enumerate(lines, 1)]
    shapes.append(text(RIGHT, top + LINE * len(lines) - 4, said, "value", "end"))
    return top + LINE * len(lines)


def _across(axis: Axis, value: float) -> float:
    return LEFT + max(0.0, min(1.0, axis.place(value))) * (RIGHT - LEFT)


def _whisker(axis: Axis, low: float, high: float, top: float) -> Shape:
    left, right, middle = _across(axis, low), _across(axis, high), top + BAR / 2
    ends = "".join(f"M{x:.1f} {middle - 4:.1f}v8" for x in (left, right))
    return path(f"M{left:.1f} {middle:.1f}H{right:.1f}{ends}", "whisker")


def _cells(shares: Sequence[float], top: float) -> list[Shape]:
    shades: dict[int, str] = {}
    width = (RIGHT - LEFT) / max(1, len(shares))
    for place, share in enumerate(shares):
        if not math.isnan(share) and (shade := math.ceil(share * SHADES)):
            cell = f"M{LEFT + place * width:.1f} {top:.1f}h{width:.1f}v{BAR:g}h{-width:.1f}z"
            shades[shade] = shades.get(shade, "") + cell
    return [
        Shape("path", {"class": "heat", "d": data, "fill-opacity": f"{shade / SHADES:g}"})
        for shade, data in sorted(shades.items())
    ]
