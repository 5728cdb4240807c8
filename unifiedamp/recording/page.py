"""The report as one HTML file that needs nothing beside it, as pictures, or as plain values."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..output.pages import render
from .advice import findings
from .counts import Distribution
from .pictures import pictures
from .reading import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "exponents": "Gradient values by power of two",
    "scale": "Loss scale",
    "underflow": "Underflow: layer by step",
    "activations": "Largest activations",
}
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


def save_pictures(recording: Recording, folder: Path) -> list[Path]:
    """Write the pictures as PNG files; return their paths."""
    drawn = pictures(recording)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in drawn]
    for path, figure in zip(paths, drawn.values(), strict=True):
        figure.savefig(path, dpi=120)
    return paths


def page(recording: Recording) -> str:
    """Return the report as HTML; pictures are inside it."""
    return render(
        "recording",
        title=title(recording),
        about=about(recording),
        findings=[each.text for each in findings(recording)],
        pictures={TITLES[name]: _png(figure) for name, figure in pictures(recording).items()},
        heads=HEADS,
        gradients=[_cells(recording, name) for name in recording.gradients],
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


def _png(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return base64.b64encode(file.getvalue()).decode()


def _cells(recording: Recording, name: str) -> list[str]:
    shares = _shares(recording, name)
    scaled, true = shares["scaled"], shares["true"]
    cells = [name, f"{scaled['values']}", _percent(scaled["zero"] / max(1, scaled["values"]))]
    cells += [_percent(scaled[kind]) for kind in ("flushed", "subnormal", "overflow")]
    return [*cells, _percent(true["flushed"])]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _every(recording: Recording) -> str:
    every = recording.header["every"]
    return "" if every is None else f", every {every}"
