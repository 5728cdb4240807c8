"""The report's plots as PNG files, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..backend.recording import FLOAT16_MAX
from ..errors import AmpError
from ..output.pages import picture_label
from .counts import NORMAL, SMALLEST
from .reading import Recording
from .series import SHOWN, flushed_shares, largest_outputs, scale_points, skipped_between, skipped_exactly, total

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 9.0
BFLOAT16 = (-126, 128)


def pictures(recording: Recording) -> dict[str, Figure]:
    """Return name → figure, of those that the recording has something for.

    Raises:
        AmpError: matplotlib is not installed, or refuses its configuration.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise AmpError("PNG files need matplotlib: pip install matplotlib; the page of --html does without") from error
    except Exception as error:  # its own configuration, such as a wrong MPLBACKEND
        raise AmpError(f"matplotlib cannot draw ({error}); the page of --html does without") from error
    makers: dict[str, Callable[[Recording], Figure | None]] = {
        "exponents": exponents,
        "scale": scale,
        "underflow": underflow,
        "activations": activations,
    }
    drawn = {name: make(recording) for name, make in makers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def exponents(recording: Recording) -> Figure | None:
    """Draw how all gradient values are distributed over powers of two, before and after scaling."""
    forms = {form: total(recording, form) for form in ("true", "scaled")}
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


def scale(recording: Recording) -> Figure | None:
    """Draw the loss scale over steps, and mark the steps that were skipped."""
    points = scale_points(recording)
    if not points:
        return None
    figure = _figure(2.6)
    axes = figure.subplots()
    axes.step(list(points), list(points.values()), where="post", color="#1f5fa8")
    exact = skipped_exactly(recording)
    level = min(points.values())
    if exact:
        axes.plot(exact, [level] * len(exact), "|", color="#b33951", markersize=14, label="skipped")
    for number, ends in enumerate(skipped_between(recording)):
        label = "skipped somewhere here" if not number else None
        axes.axvspan(*ends, color="#b33951", alpha=0.2, label=label)
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
    rows = [flushed_shares(recording, name) for name in names]
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


def activations(recording: Recording) -> Figure | None:
    """Draw each layer's largest finite output over all recorded steps, and mark where it was inf or nan."""
    shown = largest_outputs(recording)[:SHOWN]
    if not shown:
        return None
    figure = _figure(1.2 + 0.22 * len(shown))
    axes = figure.subplots()
    values = [max(one.value, 1e-9) for one in shown]
    places = range(len(shown))
    axes.barh(places, values, color=["#b33951" if value > FLOAT16_MAX else "#1f5fa8" for value in values])
    axes.set_yticks(places, [picture_label(one.layer) for one in shown])
    for place, one in enumerate(shown):
        if one.broken:
            text = f" inf or nan in {one.broken} of {len(recording.steps)} steps"
            axes.annotate(text, (values[place], place), va="center", fontsize=7, color="#b33951")
    axes.axvline(FLOAT16_MAX, color="#b33951", linestyle="--", label="65504, the largest float16")
    axes.set_xscale("log")
    axes.set_xlim(min(1.0, min(values) / 2), 4 * max(FLOAT16_MAX, *values))
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("largest absolute value of the output")
    axes.legend(fontsize=7, loc="lower right")
    return figure
