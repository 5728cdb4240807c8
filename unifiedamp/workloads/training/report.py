"""Displays a run: progress bar and a row per epoch on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...visible import plain
from .curves import HIDDEN, draw
from .run import Run
from .saved import SHARES

MOST = 1
"""Scores that a line has room for."""


class Report:
    """Prints progress to a terminal.

    Args:
        console: the output; None is standard output.
        files: draw the picture, and say where the files are.

    Attributes:
        undrawn: why there is no picture, once the run has ended.
    """

    def __init__(self, console: Console | None = None, files: bool = True) -> None:
        self._files = files
        self.console = console or Console(highlight=False, emoji=False)
        self.undrawn = ""
        self._scores: tuple[str, ...] | None = None

    def begin(self, run: Run) -> None:
        """Print the run's settings and the epochs already done."""
        amp = run.amp
        about = plain(f"{amp.backend.name}, {amp.policy}, loss scale {amp.loss_scale_settings}")
        self.console.print(f"[bold]{plain(_title(run))}[/bold]: {about}")
        for row in run.history.epochs:
            self.epoch(row)
        if run.epoch or run.batch:
            self.console.print(f"resumed at epoch {run.epoch + 1}, batch {run.batch}")
        if run.settings.train.compile:
            self.console.print("[dim]compiling: the first steps take longer[/dim]")

    def epoch(self, row: dict[str, Any]) -> None:
        """Print one epoch's row; the first prints the head too."""
        shown = [name for name in row["scores"] if name not in HIDDEN][:MOST]
        if self._scores != tuple(shown):
            self._scores = tuple(shown)
            names = "".join(f" {plain(name[:12]):>12}" for name in shown)
            head = (
                f"{'epoch':>5} {'loss':>9}{names} {'loss scale':>12} {'skipped':>8} {'samples/s':>10} {'compile s':>10}"
            )
            self.console.print(head)
        loss = math.nan if row["loss"] is None else row["loss"]
        scores = "".join(f" {_number(row['scores'][name], name):>12}" for name in shown)
        self.console.print(
            f"{row['epoch'] + 1:>5} {loss:>9.4f}{scores} {row['loss_scale']:>12g} {row['skipped_steps']:>8} "
            f"{row['samples_per_second']:>10.0f} {row['compile_seconds']:>10.1f}"
        )

    def follow(self, windows: Iterable[list[Any]], run: Run, count: int | None) -> Iterator[list[Any]]:
        """Yield ``windows`` with a progress bar at the position of ``run`` in an epoch of ``count``."""
        columns = (TextColumn("epoch {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(str(run.epoch + 1), total=count, completed=run.batch // run.window)
            for number, window in enumerate(windows, 1):
                yield window
                if number % 8 == 0:  # updating the bar takes as long as a small model's step
                    progress.update(task, completed=run.batch // run.window)

    def end(self, run: Run) -> None:
        """Write ``curves.png`` next to the checkpoint."""
        if not self._files:
            return
        path = run.settings.out / "curves.png"
        if run.checkpoint_path.exists():
            self.undrawn = draw(heading(run), run.history, run.window, path)
        if self.undrawn:
            self.console.print(f"[yellow]warning: no picture of loss and scale: {plain(self.undrawn)}[/yellow]")
        written = ["log", *["checkpoint"] * run.checkpoint_path.exists(), *["picture"] * path.exists()]
        self.console.print(f"[dim]{', '.join(written)}: {plain(run.settings.out)}[/dim]")


def _title(run: Run) -> str:
    given = ", ".join(f"{name}={value}" for name, value in run.settings.given.items())
    return run.workload.name + (f" ({given})" if given else "")


def heading(run: Run) -> str:
    """Return what stands above the picture."""
    policy = run.amp.policy.name or run.amp.policy
    return f"{_title(run)}\n{run.amp.backend.name}, {policy}; {run.amp.skipped_steps} of {run.steps} steps skipped"


def _number(score: float | None, name: str) -> str:
    if score is None:
        return "nan"
    return f"{score:.2%}" if name in SHARES else f"{score:.4g}"
