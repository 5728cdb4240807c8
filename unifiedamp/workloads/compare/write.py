"""A comparison as text: cells for every kind of table, Markdown, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...output.pages import markdown_text
from ...visible import visible
from .rows import SCRIPT, Row

COLUMNS = (
    "backend", "policy", "compile", "batch", "samples/s", "x float32", "compile s", "peak memory", "loss", "accuracy",
    "precision", "recall", "F1", "score", "scale", "skipped", "state",
)  # fmt: skip
NUMBERS = COLUMNS[3:-1]
NAMES = COLUMNS[:4]
"""Columns that say which run a row is."""
OF_DATA = frozenset({"batch", "accuracy", "precision", "recall", "F1", "score"})
"""Columns that a script has nothing for: its data is its own."""


class Cells(NamedTuple):
    """A table: its columns, those of numbers, and the cells of each row."""

    columns: tuple[str, ...]
    numbers: frozenset[str]
    rows: list[list[str]]


def table_of(rows: Sequence[Row]) -> Cells:
    """Return rows as a table; without the columns that no row of a script has."""
    scripts = bool(rows) and all(row.task.batch_size == SCRIPT for row in rows)
    kept = [index for index, name in enumerate(COLUMNS) if not (scripts and name in OF_DATA)]
    renamed = {"samples/s": "steps/s"} if scripts else {}
    columns = tuple([renamed.get(COLUMNS[index], COLUMNS[index]) for index in kept])
    numbers = frozenset(renamed.get(name, name) for name in NUMBERS)
    return Cells(columns, numbers, [[every[index] for index in kept] for every in map(cells, rows)])


def cells(row: Row) -> list[str]:
    """Return a row as text, in the order of :data:`COLUMNS`."""
    task = row.task
    size = "-" if task.batch_size is None else str(row.batch_size or task.batch_size or "?")
    size += " (largest)" if task.batch_size == 0 else ""
    return [
        task.backend,
        task.policy,
        task.compile or "-",
        size,
        _number(row.samples_per_second, ".0f" if row.unit == "samples" else ".4g"),
        _ratio(row),
        _number(row.compile_seconds, ".1f"),
        _memory(row),
        _number(row.loss, ".4f"),
        _number(row.accuracy, ".2%"),
        _number(row.precision, ".2%"),
        _number(row.recall, ".2%"),
        _number(row.f1, ".2%"),
        _number(next(iter(row.scores.values()), None), ".4g"),
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
    shown = table_of(rows)
    command = visible(about["command"]).replace("`", "'")
    lines = [
        f"# {markdown_text(about['title'])}\n",
        f"{markdown_text(about['machine'])}; {markdown_text(about['versions'])}. {markdown_text(about['date'])}: "
        f"`{command}`\n",
        "| " + " | ".join(shown.columns) + " |",
        "|" + "|".join(" ---: " if name in shown.numbers else " --- " for name in shown.columns) + "|",
        *("| " + " | ".join(map(markdown_text, line)) + " |" for line in shown.rows),
        "",
        *(f"- {markdown_text(line)}" for line in notes(rows)),
        *(f"- **{markdown_text(line)}**" for line in advice),
    ]
    return "\n".join(lines) + "\n"


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what must be said below the table."""
    found = []
    baselines = sorted({row.baseline for row in rows if row.baseline})
    unit = rows[0].unit if rows else "samples"
    if baselines:
        found.append(
            f"x float32: how many times the {unit} per second of float32, of the same backend and compile mode "
            f"({'; '.join(baselines)}); the median of the rounds, with the smallest and the largest"
        )
    if any(row.compile_seconds is not None for row in rows):
        found.append(
            "compile s: seconds that the first calls of the step took beyond usual ones (tracing, compiling, first "
            f"allocations); {unit}/s does not contain them"
        )
    if any(row.memory_of == "process" for row in rows):
        found.append("RSS: the whole process, the framework itself included")
    if any(row.precision is not None for row in rows):
        found.append("loss is the mean over the last epoch; accuracy, precision, recall and F1 are the workload's own")
    named = sorted({name for row in rows for name in list(row.scores)[:1]})
    if named:
        found.append(f"score: {', '.join(named)} of the workload's evaluation; higher is better")
    if unit == "steps":
        found.append("loss is the mean of the last fifth of the steps")
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
