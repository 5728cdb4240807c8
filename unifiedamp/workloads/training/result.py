"""The result of ``unifiedamp train``, in JSON and in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .run import Run

FILES = ("checkpoint.npz", "log.json", "curves.png")


@dataclass(frozen=True)
class Result:
    """What a command prints of a run that has ended.

    Attributes:
        run: as plain values.
        outcome: the last epoch in words, and where the files are.
        undrawn: why there is no picture; empty where there is one.
    """

    run: dict[str, Any]
    outcome: str
    undrawn: str


def run_result(run: Run, undrawn: str) -> Result:
    """Return the result of a run; see ``Result``."""
    return Result(run_to_dict(run, undrawn), outcome(run), undrawn)


def run_to_dict(run: Run, undrawn: str) -> dict[str, Any]:
    """Return the run as plain values.

    Args:
        run: that has ended.
        undrawn: why there is no picture; empty where there is one.
    """
    out = run.settings.out
    return {
        "schema": "unifiedamp-train",
        "version": 1,
        "workload": run.workload.name,
        "settings": run.workload.settings,
        "backend": run.amp.backend.name,
        "policy": str(run.amp.policy),
        "steps": run.steps,
        "skipped_steps": run.amp.skipped_steps,
        "finished": run.finished,
        "resumed_at": None if run.resumed_at is None else dict(zip(("epoch", "batch"), run.resumed_at, strict=True)),
        "epochs": run.history.epochs,
        "out": str(out),
        "files": [str(out / name) for name in FILES if (out / name).exists()],
        "warnings": [f"no picture of loss and scale: {undrawn}"] if undrawn else [],
    }


def outcome(run: Run) -> str:
    """Return the last epoch in words, and where the files are."""
    rows = run.history.epochs
    if not rows:
        return f"{run.workload.name}: {run.steps} steps; {run.settings.out}"
    row = rows[-1]
    loss = "not finite" if row["loss"] is None else format(row["loss"], ".4f")
    scores = "".join(f", {name} {value:.4g}" for name, value in row["scores"].items() if value is not None)
    return f"{run.workload.name}: epoch {row['epoch'] + 1}, loss {loss}{scores}; {run.settings.out}"
