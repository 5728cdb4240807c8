"""A comparison as text: cells for every kind of table, Markdown, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...output.pages import markdown_text
from ...output.terminal import visible
from .rows import Row

COLUMNS = (
    "backend", "policy", "compile", "batch", "samples/s", "x float32", "compile s", "peak memory", "loss", "accuracy",
    "precision", "recall", "F1", "scale", "skipped", "state",
)  # fmt: skip
NUMBERS = COLUMNS[3:-1]
NAMES = COLUMNS[:4]
"""Columns that say which run a row is."""


def cells(row: Row) -> list[str]:
    """Return a row as text, in the order of :data:`COLUMNS`."""
    task = row.task
    size = str(row.batch_size or task.batch_size or "?") + ("" if task.batch_size else " (largest)")
    return [
        task.backend,
        task.policy,
        task.compile,
        size,
        _number(row.samples_per_second, ".0f"),
        _ratio(row),
        _number(row.compile_seconds, ".1f"),
        _memory(row),
        _number(row.loss, ".4f"),
        _number(row.accuracy, ".2%"),
        _number(row.precision, ".2%"),
        _number(row.recall, ".2%"),
        _number(row.f1, ".2%"),
        _number(row.scale, "g"),
        _number(row.skipped_steps, "d"),
        row.state + _tensor_cores(row),
    ]


def tone(row: Row, column: str) -> str:
    """Return what the color of a cell says: "good", "bad", "warn", or nothing."""
    if column == "state":
        return {"done": "good", "failed": "bad", "refused": "warn"}.get(row.state, "")
    if column == "x float32" and row.ratio is not None and not row.is_baseline:
        return "good" if (row.ratio_low or 0) > 1 else "bad" if (row.ratio_high or 0) < 1 else ""
    return ""


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    return "1" if row.is_baseline else f"{row.ratio:.2f} ({row.ratio_low:.2f}-{row.ratio_high:.2f})"


def _memory(row: Row) -> str:
    if row.peak_memory is None:
        return "-"
    return f"{row.peak_memory / 2**20:.0f} MiB{' RSS' if row.memory_of == 'process' else ''}"


def _tensor_cores(row: Row) -> str:
    share = (row.tensor_cores or {}).get("share")
    return "" if share is None else f", {share:.0%} in Tensor Cores"


def markdown(rows: Sequence[Row], about: Mapping[str, Any], advice: Sequence[str]) -> str:
    """Return the page for people who read Markdown."""
    right = {name: name in NUMBERS for name in COLUMNS}
    command = visible(about["command"]).replace("`", "'")
    lines = [
        f"# {markdown_text(about['title'])}\n",
        f"{markdown_text(about['machine'])}; {markdown_text(about['versions'])}. {markdown_text(about['date'])}: "
        f"`{command}`\n",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join(" ---: " if right[name] else " --- " for name in COLUMNS) + "|",
        *("| " + " | ".join(map(markdown_text, cells(row))) + " |" for row in rows),
        "",
        *(f"- {markdown_text(line)}" for line in notes(rows)),
        *(f"- **{markdown_text(line)}**" for line in advice),
    ]
    return "\n".join(lines) + "\n"


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what must be said below the table."""
    found = []
    baselines = sorted({row.baseline for row in rows if row.baseline})
    if baselines:
        found.append(
            "x float32: how many times the samples per second of float32, of the same backend and compile mode "
            f"({'; '.join(baselines)}); the median of the rounds, with the smallest and the largest"
        )
    if any(row.compile_seconds is not None for row in rows):
        found.append(
            "compile s: seconds that the first calls of the step took beyond usual ones (tracing, compiling, first "
            "allocations); samples/s does not contain them"
        )
    if any(row.memory_of == "process" for row in rows):
        found.append("RSS: the whole process, the framework itself included")
    if any(row.precision is not None for row in rows):
        found.append("precision, recall and F1 are means over the classes; loss is the mean over the last epoch")
    for row in rows:
        if row.reason:
            found.append(f"{row.label}: {row.state}: {row.reason}")
        found += [f"{row.task.backend}, {row.task.policy}: {note}" for note in row.notes]
        reason = (row.tensor_cores or {}).get("reason")
        if reason:
            found.append(f"Tensor Cores of {row.task.backend}: not measured, {reason}")
    return list(dict.fromkeys(found))


def to_json(rows: Sequence[Row], about: Mapping[str, Any], advice: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "schema": "unifiedamp-compare",
        "version": 1,
        **about,
        "rows": [r.to_dict() for r in rows],
        "advice": advice,
    }


def dump(value: Any) -> str:
    """Return JSON text."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
