"""The plots of a comparison: throughput, loss, loss scale.

A color is a policy, a dash a backend; a marker tells apart what has the same two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...output.charts.axes import fitting, linear, logarithmic
from ...output.charts.bars import Bar, bars
from ...output.charts.curves import Curve, curves
from ...output.charts.drawing import Drawing
from ...output.charts.styles import Style, styles
from .rows import Row

Styles = Mapping[int, Style]
"""``id`` of a row → how its curve looks, the same in every plot."""


def drawings(rows: Sequence[Row]) -> list[Drawing]:
    """Return the plots that the rows have something for."""
    look = dict(zip(map(id, rows), styles([_key(row) for row in rows]), strict=True))
    found: list[Drawing] = []
    if timed := [row for row in rows if row.samples_per_second]:
        found.append(_speeds(timed, rows, look))
    if curved := [row for row in rows if any(_finite(loss) for loss in row.losses)]:
        found.append(_losses(curved, rows, look))
    if scaled := [row for row in rows if any(scale != 1 for _, scale, _ in row.scales)]:
        found.append(_scales(scaled, rows, look))
    return found


def _key(row: Row) -> tuple[str, str, bool]:
    return row.task.policy, row.task.backend, row.is_baseline


def _label(row: Row, rows: Sequence[Row]) -> str:
    """Return backend and policy, and of mode and batch size what is not the same for all."""
    parts = [row.task.backend, row.task.policy]
    if len({each.task.compile for each in rows}) > 1:
        parts.append(row.task.compile)
    if len({each.batch_size for each in rows if each.batch_size}) > 1:
        parts.append(str(row.batch_size))
    return " ".join(parts)


def _speeds(timed: Sequence[Row], rows: Sequence[Row], look: Styles) -> Drawing:
    drawn = [
        Bar(_label(row, rows), _speed(row), row.samples_per_second or 0.0, look[id(row)].color,
            min(row.rates, default=None), max(row.rates, default=None))
        for row in timed
    ]  # fmt: skip
    unit = timed[0].unit
    axis = linear(
        [0.0, *(bar.value for bar in drawn), *(bar.high or 0.0 for bar in drawn)], f"{unit} per second", pad=0
    )
    said = "; ".join(f"{bar.label} {bar.said}" for bar in drawn)
    return bars(
        f"{unit.capitalize()} per second", said, axis, drawn, note="Whiskers: the slowest and the fastest round."
    )


def _speed(row: Row) -> str:
    ratio = "" if row.ratio is None or row.is_baseline else f" ({row.ratio:.2f}x)"
    return f"{row.samples_per_second:,.0f}{ratio}"


def _losses(curved: Sequence[Row], rows: Sequence[Row], look: Styles) -> Drawing:
    drawn = [Curve(_label(row, rows), list(enumerate(row.losses, 1)), look[id(row)]) for row in curved]
    values = [loss for row in curved for loss in row.losses if loss is not None and math.isfinite(loss)]
    x = linear([1, max(len(row.losses) for row in curved)], "batch", pad=0)
    note = "Gaps: the loss was not finite." if any(not all(map(_finite, row.losses)) for row in curved) else ""
    return curves("Loss", _ends(drawn), x, fitting(values, "training loss"), drawn, note=note)


def _scales(scaled: Sequence[Row], rows: Sequence[Row], look: Styles) -> Drawing:
    drawn = [
        Curve(_label(row, rows), [(step, scale) for step, scale, _ in row.scales], look[id(row)], stepped=True)
        for row in scaled
    ]
    x = linear([step for row in scaled for step, _, _ in row.scales], "optimizer step", pad=0)
    y = logarithmic([scale for row in scaled for _, scale, _ in row.scales if scale > 0] or [1.0], "loss scale", 2)
    return curves("Loss scale", _ends(drawn), x, y, drawn)


def _finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _ends(drawn: Sequence[Curve]) -> str:
    """Return where each curve begins and ends, in words."""
    said = []
    for curve in drawn:
        values = [value for _, value in curve.points if _finite(value)]
        said.append(f"{curve.label} from {values[0]:.4g} to {values[-1]:.4g}" if values else f"{curve.label}: none")
    return "; ".join(said)
