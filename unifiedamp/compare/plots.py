"""The pictures of a comparison, as SVG; needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from .rows import Row

COLORS = {"float32": "#555555", "mixed_bfloat16": "#1f77b4", "mixed_float16": "#d95f02", "bfloat16": "#6a3d9a",
          "float16": "#b15928"}  # fmt: skip
STYLES = ("-", "--", ":", "-.")


def pictures(rows: Sequence[Row]) -> dict[str, str] | None:
    """Return title → SVG, without those that there is nothing for; None where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    found: dict[str, str] = {}
    with matplotlib.rc_context({"svg.hashsalt": "unifiedamp", "svg.fonttype": "none", "font.size": 9}):
        if timed := [row for row in rows if row.samples_per_second]:
            found["Samples per second"] = _bars(timed)
        if curves := [row for row in rows if row.losses]:
            found["Loss"] = _losses(curves)
        if scaled := [row for row in rows if row.scales and any(scale != 1 for _, scale, _ in row.scales)]:
            found["Loss scale"] = _scales(scaled)
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


def _style(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    backends = sorted({each.task.backend for each in rows})
    line = STYLES[backends.index(row.task.backend) % len(STYLES)]
    return {"color": COLORS.get(row.task.policy), "linestyle": line, "label": row.label}


def _bars(rows: Sequence[Row]) -> str:
    figure, axes = _figure(0.8 + 0.3 * len(rows))
    values = [row.samples_per_second or 0.0 for row in rows]
    low = [v - min(row.rates, default=v) for v, row in zip(values, rows, strict=True)]
    high = [max(row.rates, default=v) - v for v, row in zip(values, rows, strict=True)]
    colors = [COLORS.get(row.task.policy, "#1b9e77") for row in rows]
    axes.barh(range(len(rows)), values, xerr=(low, high), color=colors, ecolor="#222222", capsize=2)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.invert_yaxis()
    for place, (row, value, more) in enumerate(zip(rows, values, high, strict=True)):
        if row.ratio is not None and not row.is_baseline:
            axes.annotate(f"{row.ratio:.2f}x", (value + more, place), xytext=(4, 0), textcoords="offset points",
                          va="center", weight="bold")  # fmt: skip
    axes.margins(x=0.08)
    axes.set_xlabel("samples per second (whiskers: slowest and fastest round)")
    return _svg(figure)


def _losses(rows: Sequence[Row]) -> str:
    figure, axes = _figure(4)
    for row in rows:
        losses = [float("nan") if loss is None else loss for loss in row.losses]
        axes.plot(range(1, len(losses) + 1), losses, linewidth=0.9, alpha=0.85, **_style(row, rows))
    axes.set(xlabel="batch", ylabel="training loss", yscale="log")
    axes.legend(fontsize=7, ncols=2)
    return _svg(figure)


def _scales(rows: Sequence[Row]) -> str:
    figure, axes = _figure(2.5)
    for row in rows:
        steps, scales, _ = zip(*row.scales, strict=True)
        axes.step(steps, scales, where="post", **_style(row, rows))
    axes.set(xlabel="optimizer step", ylabel="loss scale")
    axes.set_yscale("log", base=2)
    axes.legend(fontsize=7, ncols=2)
    return _svg(figure)
