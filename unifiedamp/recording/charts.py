"""The report's plots for its page, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..backend.recording import FLOAT16_MAX
from ..output.charts.axes import linear, logarithmic
from ..output.charts.bars import Bar, Strip, bars, strips
from ..output.charts.curves import BOTTOM, TOP, Area, Curve, across, curves
from ..output.charts.drawing import Drawing, Key, line, path, rect
from ..output.charts.styles import Style, patch
from .counts import NORMAL, SMALLEST, Distribution
from .reading import Recording
from .series import (
    SHOWN,
    flushed_shares,
    largest_outputs,
    scale_points,
    skipped_between,
    skipped_exactly,
    total,
)

TITLES = {
    "exponents": "Gradient values by power of two",
    "scale": "Loss scale",
    "underflow": "Underflow: layer by step",
    "activations": "Largest activations",
}
BEFORE, AFTER = Style("c0", "7 3"), Style("c1")
BFLOAT16 = (-126, 128)
LIMIT = "the line across each bar is 65504, the largest float16; red bars reached beyond it, or were inf or nan"
SHARES = (0.0, 0.25, 0.5, 1.0)
"""In the legend of the underflow plot."""
LEAST = 1e-9
"""The smallest value of a bar on a logarithmic axis."""


def drawings(recording: Recording) -> list[Drawing]:
    """Return the plots that the recording has something for."""
    found = (exponents(recording), scale(recording), underflow(recording), activations(recording))
    return [drawing for drawing in found if drawing is not None]


def exponents(recording: Recording) -> Drawing | None:
    """Draw how all gradient values are distributed over powers of two, before and after scaling."""
    true, scaled = total(recording, "true"), total(recording, "scaled")
    if not (true.there or scaled.there):
        return None
    present = [*true.exponents, *scaled.exponents]
    low, high = min(*present, SMALLEST - 6), max(*present, 17) + 1
    x = linear([low, high], "power of two", pad=0)
    drawn = [
        Curve("before scaling", _distribution(true, low, high), BEFORE, stepped=True),
        Curve("after scaling", _distribution(scaled, low, high), AFTER, stepped=True),
    ]
    y = linear([0.0, *(share or 0.0 for curve in drawn for _, share in curve.points)], "share of values that are not 0")
    left, right = (across(x, max(low, min(high, end))) for end in BFLOAT16)
    wide = rect(left, TOP, right - left, 7, "wide", title="bfloat16")
    return curves(
        TITLES["exponents"], _exponents_said(true, scaled), x, y, drawn, _zones(low, high), [wide],
        [patch("wide", "bfloat16, 2⁻¹²⁶ to 2¹²⁸")],
    )  # fmt: skip


def _zones(low: int, high: int) -> list[Area]:
    return [
        Area(low, SMALLEST, "flushed", "float16 flushes to zero", "to zero"),
        Area(SMALLEST, NORMAL, "subnormal", "float16, subnormal", "subnormal"),
        Area(NORMAL, 16, "normal", "float16, normal", "normal"),
        Area(16, high, "overflow", "float16 overflows", "overflow"),
    ]


def _distribution(counts: Distribution, low: int, high: int) -> list[tuple[float, float | None]]:
    there = max(1, counts.there)
    return [(place, counts.exponents.get(place, 0) / there) for place in range(low, high + 1)]


def _exponents_said(true: Distribution, scaled: Distribution) -> str:
    said = []
    for name, counts in (("before", true), ("after", scaled)):
        lost, over = counts.share(counts.flushed) or 0.0, counts.share(counts.overflow) or 0.0
        said.append(f"{name} scaling, float16 would flush {lost:.1%} to zero and overflow in {over:.1%}")
    return "; ".join(said)


def scale(recording: Recording) -> Drawing | None:
    """Draw the loss scale over steps, and mark the steps that were skipped."""
    points = scale_points(recording)
    if not points:
        return None
    exact, between = skipped_exactly(recording), skipped_between(recording)
    x = linear([*points, *exact, *(step for ends in between for step in ends)], "step")
    y = logarithmic(points.values(), "loss scale", 2)
    areas = [Area(a, b, "flushed", "skipped somewhere here" if not n else "") for n, (a, b) in enumerate(between)]
    marks = [line(across(x, step), BOTTOM - 16, across(x, step), BOTTOM, "skip") for step in sorted(set(exact))]
    curve = Curve("loss scale", list(points.items()), AFTER, stepped=True)
    said = f"From {next(iter(points.values())):g} to {points[max(points)]:g}; {len(set(exact))} recorded steps skipped."
    keys = [Key([path("M18 0V14", "skip")], "skipped")] if marks else []
    return curves(TITLES["scale"], said, x, y, [curve], areas, marks, keys)


def underflow(recording: Recording) -> Drawing | None:
    """Draw layer × step: the share of each scaled gradient that float16 would flush to zero."""
    names = recording.gradients[:SHOWN]
    if not names:
        return None
    rows = [(name, flushed_shares(recording, name)) for name in names]
    drawn = [Strip(name, _most(shares), shares) for name, shares in rows]
    keys = [_shade(share) for share in SHARES]
    note = _of(len(recording.gradients), "gradients", "a cell shows the largest share of its steps")
    said = "; ".join(f"{strip.label}: {strip.said}" for strip in drawn)
    return strips(TITLES["underflow"], said, drawn, [int(step["step"]) for step in recording.steps], keys, note)


def _shade(share: float) -> Key:
    return Key([rect(0, 1, 36, 12, "heat", opacity=share), rect(0, 1, 36, 12, "outline")], f"{share:.0%}")


def _most(shares: Sequence[float]) -> str:
    known = [share for share in shares if not math.isnan(share)]
    if not known:
        return "no values"
    if not (most := max(known)):
        return "none below 2⁻²⁴"
    return f"up to {most:.0%} below 2⁻²⁴" if most >= 0.01 else "less than 1% below 2⁻²⁴"


def _of(count: int, what: str, more: str) -> str:
    head = f"The first {SHOWN} of {count:,} {what}; " if count > SHOWN else ""
    found = f"{head}{more}." if more else f"{head.removesuffix('; ')}." if head else ""
    return found[:1].upper() + found[1:]


def activations(recording: Recording) -> Drawing | None:
    """Draw each layer's largest finite output over all recorded steps, and say where it was inf or nan."""
    every = largest_outputs(recording)
    shown = every[:SHOWN]
    if not shown:
        return None
    drawn = [
        Bar(one.layer, _largest(one.value, one.broken, len(recording.steps)), max(one.value, LEAST),
            "over" if one.value > FLOAT16_MAX or one.broken else "c1")
        for one in shown
    ]  # fmt: skip
    low = min(1.0, *(bar.value / 2 for bar in drawn))
    axis = logarithmic([low, 4 * FLOAT16_MAX, *(bar.value for bar in drawn)], "largest absolute value of the output")
    said = "; ".join(f"{bar.label}: {bar.said}" for bar in drawn)
    note = _of(len(every), "layers", LIMIT)
    return bars(TITLES["activations"], said, axis, drawn, FLOAT16_MAX, (), note)


def _largest(value: float, broken: int, steps: int) -> str:
    return f"{value:.3g}; inf or nan in {broken} of {steps}" if broken else f"{value:.3g}"
