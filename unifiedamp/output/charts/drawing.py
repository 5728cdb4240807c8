"""What a chart is made of: a few kinds of SVG shapes, a legend, and words for those who cannot see it.

Nothing here has a color or a ``style`` attribute: a page's content-security policy allows its style sheet alone, which
colors the classes for light and dark pages and for paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...visible import visible

WIDTH = 480.0
"""Of every chart, in its own units: a phone shows them at 0.7 pixels each, a desktop page at about 1."""
LINES, LETTERS = 3, 42
"""Of a label above a bar: more would not fit beside the bar's value."""
PIECES = re.compile(rf"[^ ./_]{{0,{LETTERS - 1}}}[ ./_]|[^ ./_]{{1,{LETTERS}}}")
"""Of a label: it is broken after a space, a dot, a slash or an underscore, and in the middle of very long words."""


@dataclass(frozen=True)
class Shape:
    """One SVG element.

    Attributes:
        tag: its name.
        attributes: by name, as text.
        text: its content (of ``text`` elements).
        title: what a browser shows when the pointer is on it.
    """

    tag: str
    attributes: Mapping[str, str]
    text: str = ""
    title: str = ""


@dataclass(frozen=True)
class Key:
    """An entry of the legend: what is drawn (on 36 by 14 units), and its label."""

    shapes: Sequence[Shape]
    label: str


@dataclass(frozen=True)
class Drawing:
    """A chart.

    Attributes:
        title: its heading.
        description: what it shows, in words.
        height: in units; it is :data:`WIDTH` wide.
        shapes: what is drawn, back to front.
        keys: the legend.
        note: a sentence below it.
    """

    title: str
    description: str
    height: float
    shapes: Sequence[Shape]
    keys: Sequence[Key] = field(default_factory=tuple)
    note: str = ""


def path(data: str, kind: str, *, dash: str = "", title: str = "") -> Shape:
    """Return a path; ``kind`` is its class."""
    return Shape("path", {"class": kind, "d": data} | ({"stroke-dasharray": dash} if dash else {}), title=title)


def rect(x: float, y: float, width: float, height: float, kind: str, *, title: str = "", opacity: float = 1) -> Shape:
    """Return a rectangle; ``kind`` is its class."""
    found = {"class": kind, "x": number(x), "y": number(y), "width": number(width), "height": number(height)}
    return Shape("rect", found | ({"fill-opacity": f"{opacity:g}"} if opacity < 1 else {}), title=title)


def line(x1: float, y1: float, x2: float, y2: float, kind: str, dash: str = "") -> Shape:
    """Return a straight line; ``kind`` is its class."""
    return path(f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", kind, dash=dash)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> Shape:
    """Return a line of text; ``anchor`` is "start", "middle" or "end"."""
    found = {"x": number(x), "y": number(y)}
    found |= {"text-anchor": anchor} if anchor != "start" else {}
    return Shape("text", found | ({"class": kind} if kind else {}), words)


def number(value: float) -> str:
    """Return a coordinate, to a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0")


def label_lines(words: object) -> list[str]:
    """Return a label on as many lines as fit; long ones keep their end, by which layers differ."""
    lines = [""]
    for piece in PIECES.findall(visible(words)):
        if lines[-1] and len(lines[-1]) + len(piece) > LETTERS:
            lines.append("")
        lines[-1] += piece
    return lines if len(lines) <= LINES else [f"…{lines[-LINES][1:]}", *lines[-LINES + 1 :]]
