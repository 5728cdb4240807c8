"""The report as one HTML file that needs nothing beside it, as PNG files, or as plain values."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import AmpError
from ..output.charts.drawing import Drawing
from ..output.pages import drawn_or_why, render
from . import charts
from .advice import FLUSHED_TOO_MUCH, findings
from .counts import Distribution
from .pictures import pictures, png
from .reading import Recording

HEADS = ("gradient", "values", "zero", "flushed", "subnormal", "overflow", "flushed, before scaling")


def to_dict(recording: Recording) -> dict[str, Any]:
    """Return the report as plain JSON values."""
    return {
        "header": recording.header,
        "recorded_steps": len(recording.steps),
        "skipped_steps": _skipped(recording),
        "damaged_lines": recording.damaged,
        "findings": [asdict(found) for found in findings(recording)],
        "gradients": {name: _shares(recording, name) for name in recording.gradients},
    }


def _skipped(recording: Recording) -> int:
    last = [*recording.steps, *recording.skips]
    return max((int(record["skipped_steps"]) for record in last), default=0)


def _shares(recording: Recording, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for form in ("true", "scaled"):
        counts = recording.total(name, form)
        kinds = {kind: getattr(counts, kind) for kind in ("flushed", "subnormal", "overflow")}
        found[form] = {kind: counts.share(count) for kind, count in kinds.items()}
        found[form] |= {"zero": counts.zero, "inf": counts.inf, "nan": counts.nan, "values": _values(counts)}
    return found


def _values(counts: Distribution) -> int:
    return counts.there + counts.zero + counts.inf + counts.nan


def save_pictures(recording: Recording, folder: Path) -> tuple[list[Path], str]:
    """Write the plots as PNG files; return their paths, or nothing and the reason why they cannot be drawn.

    Raises:
        OSError: they cannot be written.
    """
    try:
        drawn = {name: png(figure) for name, figure in pictures(recording).items()}
    except Exception as error:  # no matplotlib, its configuration, its fonts: the findings do not depend on them
        return [], str(error) if isinstance(error, AmpError) else f"matplotlib: {type(error).__name__}: {error}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in drawn]
    for path, content in zip(paths, drawn.values(), strict=True):
        path.write_bytes(content)
    return paths, ""


def drawings(recording: Recording) -> tuple[list[Drawing], str]:
    """Return the plots of the page, or none and the reason why they cannot be drawn."""
    return drawn_or_why(lambda: charts.drawings(recording))


def page(recording: Recording, plots: tuple[list[Drawing], str] | None = None) -> str:
    """Return the report as HTML; its plots are inside it.

    Args:
        recording: what it is about.
        plots: its :func:`drawings`; None draws them.
    """
    drawn, why = drawings(recording) if plots is None else plots
    return render(
        "recording",
        title=title(recording),
        about=about(recording),
        findings=[each.text for each in findings(recording)],
        drawings=drawn,
        not_drawn=why,
        columns=[{"name": name, "kind": "number" if place else "text long"} for place, name in enumerate(HEADS)],
        rows=[{"state": "", "cells": _cells(recording, name)} for name in recording.gradients],
        version=recording.header["unifiedamp"],
    )


def title(recording: Recording) -> str:
    """Return what was recorded, in one line."""
    header = recording.header
    return f"{header['backend']} {header['framework_version']} on {header['device']}, {header['policy']}"


def about(recording: Recording) -> str:
    """Return how much was recorded, in one line."""
    text = f"{len(recording.steps)} steps recorded{_every(recording)}; "
    text += f"{_skipped(recording)} steps skipped."
    if recording.damaged:
        text += f" {recording.damaged} lines could not be read (cut off by a kill?) and are left out."
    return text


def _cells(recording: Recording, name: str) -> list[dict[str, str]]:
    shares = _shares(recording, name)
    scaled, true = shares["scaled"], shares["true"]
    cells = [name, f"{scaled['values']:,}", _percent(scaled["zero"] / max(1, scaled["values"]))]
    cells += [_percent(scaled[kind]) for kind in ("flushed", "subnormal", "overflow")]
    lost = (scaled["flushed"] or 0.0) > FLUSHED_TOO_MUCH
    tones = ["", "", "", "bad" if lost else "", "", "bad" if scaled["overflow"] else "", ""]
    return [{"text": text, "tone": tone} for text, tone in zip([*cells, _percent(true["flushed"])], tones, strict=True)]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _every(recording: Recording) -> str:
    every = recording.header["every"]
    return "" if every is None else f", every {every}"
