"""The report as one HTML file that needs nothing beside it, as pictures, or as plain values."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..output.pages import html_text
from .advice import Finding, findings
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
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
img { max-width: 100%; } code { background: #f0f0f0; padding: 0 .2em; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .2rem .6rem; border-bottom: 1px solid #ddd; }
td { text-align: right; } td:first-child, th:first-child { text-align: left; }
li { margin: .4rem 0; } .good { color: #2d6a4f; } footer { color: #777; font-size: 12px; margin-top: 3rem; }
"""


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
    parts = [f"<h1>{html_text(title(recording))}</h1>", f"<p>{html_text(about(recording))}</p>"]
    parts += ["<h2>Findings</h2>", _list(findings(recording))]
    for name, figure in pictures(recording).items():
        parts += [f"<h2>{TITLES[name]}</h2>", _image(TITLES[name], figure)]
    parts += ["<h2>Gradients</h2>", _table(recording)]
    version = html_text(recording.header["unifiedamp"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>unifiedamp report</title>'
        '<link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + f"\n<footer>unifiedamp {version}</footer>\n"
        "</body></html>\n"
    )


def title(recording: Recording) -> str:
    """Return what was recorded, in one line."""
    header = recording.header
    return f"{header['backend']} {header['framework_version']} on {header['device']}, {header['policy']}"


def about(recording: Recording) -> str:
    """Return how much was recorded, in one line."""
    text = f"{len(recording.steps)} steps recorded, every {recording.header['every']}; "
    text += f"{_skipped(recording)} steps skipped."
    if recording.damaged:
        text += f" {recording.damaged} lines could not be read (cut off by a kill?) and are left out."
    return text


def _list(found: list[Finding]) -> str:
    if not found:
        return '<p class="good">Nothing to change: no overflow, no gradient lost to underflow, no epsilon lost.</p>'
    items = []
    for each in found:
        text = html_text(each.text)
        pieces = text.split("`")
        marked = "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
        items.append(f"<li>{marked}</li>")
    return "<ul>" + "".join(items) + "</ul>"


def _image(title: str, figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{html_text(title)}" src="data:image/png;base64,{data}">'


def _table(recording: Recording) -> str:
    heads = ("values", "zero", "flushed", "subnormal", "overflow", "flushed, before scaling")
    rows = ["<tr><th>gradient</th>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for name in recording.gradients:
        shares = _shares(recording, name)
        scaled, true = shares["scaled"], shares["true"]
        cells = [f"{scaled['values']}", _percent(scaled["zero"] / max(1, scaled["values"]))]
        cells += [_percent(scaled[kind]) for kind in ("flushed", "subnormal", "overflow")]
        cells.append(_percent(true["flushed"]))
        rows.append(f"<tr><td>{html_text(name)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    note = "Shares are of the values that are not zero, over all recorded steps; as float16 would hold the gradients."
    return f"<p>{note}</p><table>{''.join(rows)}</table>"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
