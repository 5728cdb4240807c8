"""From what a session notes to the row of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..compare.rows import Row


def begin_row(row: Row, session: Mapping[str, Any]) -> None:
    """Fill in what is known once the script trains."""
    row.task = replace(row.task, backend=session["backend"], compile=row.task.compile or session["compile"])
    row.notes = list(session["said"])
    if row.task.compile not in ("off", session["compile"]):
        row.notes.append(f"the script never calls amp.compile: mode {row.task.compile!r} has no effect")


def add_turn(row: Row, turn: Mapping[str, Any]) -> None:
    """Fill in the steps of a turn."""
    row.losses += turn["losses"]
    row.scales += turn["scales"]
    state = turn["state"]
    row.scale, row.applied_steps, row.skipped_steps = state["scale"], state["applied"], state["skipped"]
    row.peak_memory, row.memory_of = turn["peak_memory"], turn["memory_of"]
    row.notes += [note for note in turn["warned"] if note not in row.notes]
    row.loss = mean_of_last(row.losses)
    if turn["number"] == 0:
        usual = usual_step(turn)
        row.compile_seconds = sum(each - usual for each in turn["times"] if each > 2 * usual)
    elif turn["seconds"]:
        row.rates.append(turn["timed"] / turn["seconds"])


def usual_step(turn: Mapping[str, Any]) -> float:
    """Return the seconds of a usual step of the first turn."""
    return float(median(turn["times"]))


def finish_row(row: Row) -> None:
    """Fill in what follows from all turns."""
    row.state = "done"
    row.samples_per_second = median(row.rates) if row.rates else None


def mean_of_last(losses: Sequence[float | None], share: int = 5) -> float | None:
    """Return the mean of the last fifth of the losses; None where one of them is not finite."""
    last = losses[-max(1, len(losses) // share) :]
    found = [loss for loss in last if loss is not None and math.isfinite(loss)]
    return sum(found) / len(found) if found and len(found) == len(last) else None
