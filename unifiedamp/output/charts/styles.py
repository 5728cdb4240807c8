"""What tells curves apart: a color, a dash and a marker; each of the three helps where another cannot be seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .drawing import Key, Shape, path

COLORS = 7
"""Colors of the style sheet beside that of baselines: classes c1 to c7; c0 is the baselines' grey."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2")
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "ring")
OPEN = MARKERS[5:]
"""Markers that are lines; the others are areas."""
KEY = (36.0, 14.0)
"""Width and height of a line in the legend."""


@dataclass(frozen=True)
class Style:
    """Of one curve or bar.

    Attributes:
        color: a class of the style sheet.
        dash: as ``stroke-dasharray`` has it; empty for a whole line.
        marker: one of :data:`MARKERS`.
    """

    color: str
    dash: str = ""
    marker: str = ""


def styles(keys: Sequence[tuple[Hashable, Hashable, bool]]) -> list[Style]:
    """Return a style for each curve.

    Up to eight curves of one dash differ without their color, on grey paper too. Beyond that, none looks like another
    as long as there are markers.

    Args:
        keys: of each curve, what its color stands for, what its dash stands for, and whether it is a baseline (grey).
    """
    colored = list(dict.fromkeys(color for color, _, baseline in keys if not baseline))
    dashed = list(dict.fromkeys(dash for _, dash, _ in keys))
    found: list[Style] = []
    for number, (color, dash, baseline) in enumerate(keys):
        shade = "c0" if baseline else f"c{colored.index(color) % COLORS + 1}"
        pattern = DASHES[dashed.index(dash) % len(DASHES)]
        tries = [Style(shade, pattern, MARKERS[(number + more) % len(MARKERS)]) for more in range(len(MARKERS))]
        colorless = {(each.dash, each.marker) for each in found}
        new = [each for each in tries if (each.dash, each.marker) not in colorless]
        new += [each for each in tries if each not in found]
        found.append((new or tries)[0])
    return found


def mark(style: Style, places: Sequence[tuple[float, float]], title: str = "") -> Shape:
    """Return a curve's markers at some points."""
    kind = "open" if style.marker in OPEN else "mark"
    return path("".join(_form(style.marker, x, y) for x, y in places), f"{kind} {style.color}", title=title)


def _form(marker: str, x: float, y: float) -> str:
    forms = {
        "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        "square": "m-4-4h8v8h-8z",
        "triangle": "m0-5l5 9h-10z",
        "down": "m0 5l5-9h-10z",
        "diamond": "m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
        "cross": "m-4-4l8 8m0-8l-8 8",
        "plus": "m-5 0h10m-5-5v10",
        "ring": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    }
    return f"M{x:.1f} {y:.1f}{forms[marker]}"


def key(style: Style, label: str) -> Key:
    """Return the legend's entry of a curve: a piece of its line, with its marker."""
    middle = KEY[1] / 2
    shapes: list[Shape] = [path(f"M0 {middle:g}H{KEY[0]:g}", f"curve {style.color}", dash=style.dash)]
    if style.marker:
        shapes.append(mark(style, [(KEY[0] / 2, middle)]))
    return Key(shapes, label)


def patch(kind: str, label: str) -> Key:
    """Return the legend's entry of an area."""
    return Key([path(f"M0 1H{KEY[0]:g}V{KEY[1] - 1:g}H0z", kind)], label)
