"""The report's pictures, drawn by matplotlib."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..backend.recording import FLOAT16_MAX
from ..errors import AmpError
from ..output.pages import picture_label
from .counts import EMPTY, NORMAL, SMALLEST, Distribution
from .reading import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 9.0
BFLOAT16 = (-126, 128)
SHOWN = 60
"""Rows of the heat map and bars of activations; more would not be readable."""


def pictures(recording: Recording) -> dict[str, Figure]:
    """Return name → figure, of those that the recording has something for.

    Raises:
        AmpError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise AmpError(
            "a report with pictures needs matplotlib: pip install matplotlib; the findings alone come without it: "
            "unifiedamp report FILE"
        ) from error
    except Exception as error:  # its own configuration, such as a wrong MPLBACKEND
        raise AmpError(
            f"matplotlib cannot draw ({error}); the findings alone come without it: unifiedamp report FILE"
        ) from error
    makers: dict[str, Callable[[Recording], Figure | None]] = {
        "exponents": exponents,
        "scale": scale,
        "underflow": underflow,
        "activations": activations,
    }
    drawn = {name: make(recording) for name, make in makers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def exponents(recording: Recording) -> Figure | None:
    """Draw how all gradient values are distributed over powers of two, before and after scaling."""
    forms = {form: _sum(recording, form) for form in ("true", "scaled")}
    if not any(counts.there for counts in forms.values()):
        return None
    figure = _figure(3.6)
    axes = figure.subplots()
    present = [exponent for counts in forms.values() for exponent in counts.exponents]
    low, high = min(*present, SMALLEST - 6), max(*present, 17)
    axes.axvspan(NORMAL, 16, color="#4c9f70", alpha=0.18, label="float16, normal")
    axes.axvspan(SMALLEST, NORMAL, color="#e9b44c", alpha=0.25, label="float16, subnormal")
    axes.axvspan(low, SMALLEST, color="#b33951", alpha=0.12, label="float16 flushes to zero")
    axes.axvspan(16, max(high + 1, 18), color="#b33951", alpha=0.22, label="float16 overflows")
    for form, color in (("true", "#777777"), ("scaled", "#1f5fa8")):
        counts = forms[form]
        places = list(range(low, high + 2))
        share = [counts.exponents.get(place, 0) / max(1, counts.there) for place in places]
        axes.step(places, share, where="post", color=color, label=f"{'before' if form == 'true' else 'after'} scaling")
    # A strip along the top: all of it that is on the page.
    strip = (max(low, BFLOAT16[0]), min(max(high + 1, 18), BFLOAT16[1]))
    label = "bfloat16 (2**-126 to 2**128)"
    axes.plot(strip, (1, 1), transform=axes.get_xaxis_transform(), color="#7b5ea7", linewidth=8, label=label)
    axes.set(xlabel="power of two", ylabel="share of values that are not zero", xlim=(low, max(high + 1, 18)))
    axes.legend(fontsize=7, loc="upper left")
    return figure


def _sum(recording: Recording, form: str) -> Distribution:
    total = EMPTY
    for name in recording.gradients:
        total = total.plus(recording.total(name, form))
    return total


def scale(recording: Recording) -> Figure | None:
    """Draw the loss scale over steps, and mark the steps that were skipped."""
    points = {int(step["step"]): float(step["scale"]) for step in recording.steps}
    after = {int(record["step"]) + 1: float(record["next_scale"]) for record in [*recording.steps, *recording.skips]}
    points = {**after, **points}
    if not points:
        return None
    figure = _figure(2.6)
    axes = figure.subplots()
    steps = sorted(points)
    axes.step(steps, [points[step] for step in steps], where="post", color="#1f5fa8")
    exact = [int(step["step"]) for step in recording.steps if not step["applied"]]
    exact += [int(skip["step"]) for skip in recording.skips if skip["exact"]]
    level = min(points.values())
    if exact:
        axes.plot(exact, [level] * len(exact), "|", color="#b33951", markersize=14, label="skipped")
    for number, skip in enumerate(skip for skip in recording.skips if not skip["exact"]):
        label = "skipped somewhere here" if not number else None
        axes.axvspan(skip["since"], skip["step"], color="#b33951", alpha=0.2, label=label)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="step", ylabel="loss scale")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    return figure


def underflow(recording: Recording) -> Figure | None:
    """Draw layer × step: the share of each scaled gradient that float16 would flush to zero."""
    names = recording.gradients[:SHOWN]
    if not names:
        return None
    rows = [[_flushed(step["gradients"].get(name)) for step in recording.steps] for name in names]
    figure = _figure(1.2 + 0.2 * len(names))
    axes = figure.subplots()
    image = axes.imshow(rows, aspect="auto", vmin=0, vmax=1, cmap="magma_r", interpolation="nearest")
    axes.set_yticks(range(len(names)), [picture_label(name) for name in names], fontsize=7)
    every = max(1, len(recording.steps) // 12)
    places = range(0, len(recording.steps), every)
    axes.set_xticks(list(places), [str(recording.steps[place]["step"]) for place in places], fontsize=7)
    axes.set_xlabel("step")
    figure.colorbar(image, label="share below 2**-24, scaled")
    return figure


def _flushed(gradient: dict[str, Any] | None) -> float:
    counts = EMPTY if gradient is None else Distribution.from_json(gradient["scaled"])
    share = counts.share(counts.flushed)
    return math.nan if share is None else share


def activations(recording: Recording) -> Figure | None:
    """Draw each layer's largest finite output over all recorded steps, and mark where it was inf or nan."""
    largest: dict[str, float] = {}
    broken: Counter[str] = Counter()
    for step in recording.steps:
        for row in step["activations"]:
            if row["place"] == "output":
                name, value = row["layer"] or "(model)", float(row["largest"])
                broken[name] += not math.isfinite(value)
                largest[name] = max(largest.get(name, 0.0), value if math.isfinite(value) else 0.0)
    names = list(largest)[:SHOWN]
    if not names:
        return None
    figure = _figure(1.2 + 0.22 * len(names))
    axes = figure.subplots()
    values = [max(largest[name], 1e-9) for name in names]
    places = range(len(names))
    axes.barh(places, values, color=["#b33951" if value > FLOAT16_MAX else "#1f5fa8" for value in values])
    axes.set_yticks(places, [picture_label(name) for name in names])
    for place, name in enumerate(names):
        if broken[name]:
            text = f" inf or nan in {broken[name]} of {len(recording.steps)} steps"
            axes.annotate(text, (values[place], place), va="center", fontsize=7, color="#b33951")
    axes.axvline(FLOAT16_MAX, color="#b33951", linestyle="--", label="65504, the largest float16")
    axes.set_xscale("log")
    axes.set_xlim(min(1.0, min(values) / 2), 4 * max(FLOAT16_MAX, *values))
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("largest absolute value of the output")
    axes.legend(fontsize=7, loc="lower right")
    return figure
