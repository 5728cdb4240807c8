"""The pictures of a comparison, as SVG; needs matplotlib.

A color is a policy, a kind of line a backend.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from ...errors import UnsupportedError
from ...output.pages import picture_label
from .rows import Row

COLORS = ("#1f77b4", "#d95f02", "#1b9e77", "#6a3d9a", "#b15928", "#e7298a", "#66a61e")
"""Of policies, in their order; float32 is grey."""
STYLES = ("-", "--", ":", "-.")


def pictures(rows: Sequence[Row]) -> dict[str, str]:
    """Return title → SVG, without those that there is nothing for.

    Raises:
        UnsupportedError: matplotlib is not installed, or cannot draw; the message is for the page.
    """
    try:
        return _pictures(rows)
    except ImportError as error:
        raise UnsupportedError("matplotlib is not installed (pip install matplotlib)") from error
    except Exception as error:  # a page without pictures is better than none, whatever keeps matplotlib from drawing
        raise UnsupportedError(f"matplotlib: {type(error).__name__}: {error}") from error


def _pictures(rows: Sequence[Row]) -> dict[str, str]:
    import matplotlib

    found: dict[str, str] = {}
    with matplotlib.rc_context({"svg.hashsalt": "unifiedamp", "svg.fonttype": "none", "font.size": 9}):
        if timed := [row for row in rows if row.samples_per_second]:
            found[f"{timed[0].unit.capitalize()} per second"] = _bars(timed, rows)
        if curves := [row for row in rows if row.losses]:
            found["Loss"] = _losses(curves, rows)
        if scaled := [row for row in rows if row.scales and any(scale != 1 for _, scale, _ in row.scales)]:
            found["Loss scale"] = _scales(scaled, rows)
    return found


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _color(row: Row, rows: Sequence[Row]) -> str:
    policies = list(dict.fromkeys(each.task.policy for each in rows if not each.is_baseline))
    return "#555555" if row.is_baseline else COLORS[policies.index(row.task.policy) % len(COLORS)]


def _style(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    backends = sorted({each.task.backend for each in rows})
    line = STYLES[backends.index(row.task.backend) % len(STYLES)]
    return {"color": _color(row, rows), "linestyle": line, "label": _label(row, rows)}


def _label(row: Row, rows: Sequence[Row]) -> str:
    """Return backend and policy, and of mode and batch size what is not the same for all; long ones on more lines."""
    parts = [row.task.backend, row.task.policy]
    if len({each.task.compile for each in rows}) > 1:
        parts.append(row.task.compile)
    if len({each.batch_size for each in rows}) > 1:
        parts.append(str(row.batch_size))
    return picture_label("\n".join(wrap(" ".join(parts), 44)))


def _bars(rows: Sequence[Row], every: Sequence[Row]) -> str:
    figure, axes = _figure(0.8 + 0.3 * len(rows))
    values = [row.samples_per_second or 0.0 for row in rows]
    low = [v - min(row.rates, default=v) for v, row in zip(values, rows, strict=True)]
    high = [max(row.rates, default=v) - v for v, row in zip(values, rows, strict=True)]
    colors = [_color(row, every) for row in rows]
    axes.barh(range(len(rows)), values, xerr=(low, high), color=colors, ecolor="#222222", capsize=2)
    axes.set_yticks(range(len(rows)), [_label(row, every) for row in rows])
    axes.invert_yaxis()
    for place, (row, value, more) in enumerate(zip(rows, values, high, strict=True)):
        if row.ratio is not None and not row.is_baseline:
            axes.annotate(f"{row.ratio:.2f}x", (value + more, place), xytext=(4, 0), textcoords="offset points",
                          va="center", weight="bold")  # fmt: skip
    axes.margins(x=0.08)
    axes.set_xlabel(f"{rows[0].unit} per second (whiskers: slowest and fastest round)")
    return _svg(figure)


def _losses(rows: Sequence[Row], every: Sequence[Row]) -> str:
    figure, axes = _figure(4.2 + 0.1 * len(rows))
    for row in rows:
        losses = [float("nan") if loss is None else loss for loss in row.losses]
        axes.plot(range(1, len(losses) + 1), losses, linewidth=0.9, alpha=0.85, **_style(row, every))
    axes.set(xlabel="batch", ylabel="training loss", yscale="log")
    figure.legend(loc="outside lower left", fontsize=7, ncols=3)
    return _svg(figure)


def _scales(rows: Sequence[Row], every: Sequence[Row]) -> str:
    figure, axes = _figure(2.7 + 0.1 * len(rows))
    for row in rows:
        steps, scales, _ = zip(*row.scales, strict=True)
        axes.step(steps, scales, where="post", **_style(row, every))
    axes.set(xlabel="optimizer step", ylabel="loss scale")
    axes.set_yscale("log", base=2)
    figure.legend(loc="outside lower left", fontsize=7, ncols=3)
    return _svg(figure)
