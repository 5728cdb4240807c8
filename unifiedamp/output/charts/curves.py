"""Curves over steps or batches, on two axes, with areas behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .axes import Axis, frame
from .drawing import WIDTH, Drawing, Key, Shape, path, rect, text
from .styles import Style, key, mark, patch

LEFT, TOP, RIGHT, BOTTOM = 62.0, 24.0, WIDTH - 12, 244.0
HEIGHT = BOTTOM + 42
COLUMNS = 200
"""Along the x axis: of the points in one, the first, lowest, highest and last are drawn."""
MARKS = 5
"""Markers on a curve, about."""
LETTER = 8.0
"""Width of a letter, at most: an area that is narrower than its name is named in the legend alone."""

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Curve:
    """A curve.

    Attributes:
        label: in the legend.
        points: x and y, by rising x; a y that is None or not finite breaks the curve.
        style: how it looks.
        stepped: whether it keeps a value until the next.
    """

    label: str
    points: Points
    style: Style
    stepped: bool = False


@dataclass(frozen=True)
class Area:
    """A range of x, from top to bottom: its ends, class, name in the legend, and a short name inside it."""

    low: float
    high: float
    kind: str
    label: str
    short: str = ""


def curves(
    title: str,
    description: str,
    x: Axis,
    y: Axis,
    drawn: Sequence[Curve],
    areas: Sequence[Area] = (),
    more: Sequence[Shape] = (),
    keys: Sequence[Key] = (),
    note: str = "",
) -> Drawing:
    """Return a chart of curves.

    Args:
        title, description, note: see :class:`Drawing`.
        x, y: the axes.
        drawn: the curves.
        areas: behind them; one with an empty label has no entry in the legend.
        more: shapes on top.
        keys: entries of the legend beside those of areas and curves.
    """
    shapes = [shape for area in areas for shape in _area(area, x)]
    shapes += frame(x, y, (LEFT, TOP, RIGHT, BOTTOM))
    for place, curve in enumerate(drawn):
        shapes += _curve(curve, x, y, (place + 1) / (len(drawn) + 1))
    legend = [patch(area.kind, area.label) for area in areas if area.label]
    legend += [key(curve.style, curve.label) for curve in drawn]
    return Drawing(title, description, HEIGHT, [*shapes, *more], [*legend, *keys], note)


def across(x: Axis, value: float) -> float:
    """Return where a value of x is drawn, inside the frame."""
    return LEFT + max(0.0, min(1.0, x.place(value))) * (RIGHT - LEFT)


def _area(area: Area, x: Axis) -> Iterator[Shape]:
    left, right = across(x, area.low), across(x, area.high)
    if right > left:
        yield rect(left, TOP, right - left, BOTTOM - TOP, area.kind, title=area.label)
    if area.short and right - left > LETTER * len(area.short):
        yield text((left + right) / 2, TOP + 26, area.short, "inside", "middle")


def _curve(curve: Curve, x: Axis, y: Axis, offset: float) -> Iterator[Shape]:
    pieces = [
        [(across(x, at), BOTTOM - y.place(value) * (BOTTOM - TOP)) for at, value in thinned(piece)]
        for piece in unbroken(curve.points)
    ]
    if not pieces:
        return
    data = "".join(_line(piece, curve.stepped) for piece in pieces)
    yield path(data, f"curve {curve.style.color}", dash=curve.style.dash, title=curve.label)
    if curve.style.marker:
        places = _spread([place for piece in pieces for place in piece], offset)
        yield mark(curve.style, places, curve.label)


def unbroken(points: Points) -> list[list[tuple[float, float]]]:
    """Return the pieces between values that are None or not finite."""
    held = groupby(points, lambda point: point[1] is not None and math.isfinite(point[1]))
    return [[(at, value) for at, value in piece if value is not None] for whole, piece in held if whole]


def thinned(points: Sequence[tuple[float, float]], columns: int = COLUMNS) -> list[tuple[float, float]]:
    """Return the points that can be told apart: of each column the first, lowest, highest and last."""
    if len(points) <= 4 * columns:
        return list(points)
    first, width = points[0][0], (points[-1][0] - points[0][0]) / columns or 1.0
    kept: list[tuple[float, float]] = []
    for _, group in groupby(points, lambda point: int((point[0] - first) / width)):
        column = list(group)
        by_value = sorted(range(len(column)), key=lambda place: column[place][1])
        kept += [column[place] for place in sorted({0, by_value[0], by_value[-1], len(column) - 1})]
    return kept


def _line(piece: Sequence[tuple[float, float]], stepped: bool) -> str:
    (x, y), rest = piece[0], piece[1:]
    if not rest:
        return f"M{x:.1f} {y:.1f}h0"  # a dot: lines have round ends
    if stepped:
        return f"M{x:.1f} {y:.1f}" + "".join(f"H{at:.1f}V{high:.1f}" for at, high in rest)
    return f"M{x:.1f} {y:.1f}L" + " ".join(f"{at:.1f} {high:.1f}" for at, high in rest)


def _spread(places: Sequence[tuple[float, float]], offset: float) -> list[tuple[float, float]]:
    """Return about :data:`MARKS` of them; ``offset``, from 0 to 1, moves those of one curve away from another's."""
    if len(places) <= MARKS:
        return list(places)
    step = len(places) / MARKS
    return [places[min(len(places) - 1, int((number + offset) * step))] for number in range(MARKS)]
