"""Displays a run: progress bar and a row per epoch on the terminal, and a plot of loss and loss scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unifiedamp.output.terminal import plain

from .history import History
from .run import Run

T = TypeVar("T")
HEAD = f"{'epoch':>5} {'loss':>9} {'accuracy':>9} {'loss scale':>12} {'skipped':>8} {'samples/s':>10} {'compile s':>10}"


class Report:
    """Prints progress to a terminal.

    Args:
        console: the output; None is standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, emoji=False)

    def begin(self, run: Run) -> None:
        """Print the run's settings and the epochs already done."""
        amp, train = run.amp, run.settings.train
        scale = f"loss scale {amp.loss_scale_settings}"
        about = plain(f"{amp.backend.name}, {amp.policy}, {scale}")
        self.console.print(f"[bold]{train.model} on {train.data}[/bold]: {about}")
        self.console.print(HEAD)
        for row in run.history.epochs:
            self.epoch(row)
        if run.epoch or run.batch:
            self.console.print(f"resumed at epoch {run.epoch + 1}, batch {run.batch}")

    def epoch(self, row: dict[str, Any]) -> None:
        """Print one epoch's row."""
        loss = math.nan if row["loss"] is None else row["loss"]
        self.console.print(
            f"{row['epoch'] + 1:>5} {loss:>9.4f} {row['accuracy']:>9.2%} {row['loss_scale']:>12g} "
            f"{row['skipped_steps']:>8} {row['samples_per_second']:>10.0f} {row.get('compile_seconds', 0.0):>10.1f}"
        )

    def follow(self, batches: Iterable[T], run: Run, count: int) -> Iterator[T]:
        """Yield ``batches`` with a progress bar at the position of ``run`` in an epoch of ``count`` batches."""
        columns = (TextColumn("epoch {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(str(run.epoch + 1), total=count, completed=run.batch)
            for batch in batches:
                yield batch
                if run.batch % 8 == 0:  # updating the bar takes as long as a small model's step
                    progress.update(task, completed=run.batch)

    def picture(self, run: Run) -> None:
        """Write ``curves.png`` next to the checkpoint."""
        path = run.settings.out / "curves.png"
        lacking = draw(run.history, run.window, path) if run.checkpoint_path.exists() else ""
        if lacking:
            self.console.print(f"no picture of loss and scale: {plain(lacking)}")
        self.console.print(f"[dim]log, checkpoint and picture: {plain(run.settings.out)}[/dim]")


def draw(history: History, window: int, path: Path) -> str:
    """Plot loss and loss scale over optimizer steps to a PNG; return an error message, or an empty string."""
    try:
        _draw(history, window, path)
    except ImportError:
        return "matplotlib is not installed"
    except Exception as error:  # a failed plot must not end a training run
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def _draw(history: History, window: int, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    loss, scale = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    steps = [(i + 1) / window for i in range(len(history.losses))]
    loss.plot(steps, history.losses, linewidth=0.8)
    loss.set(ylabel="loss", yscale="log")
    if history.scales:
        scale.step([row[0] for row in history.scales], [row[1] for row in history.scales], where="post")
    scale.set(ylabel="loss scale", xlabel="optimizer step")
    scale.set_yscale("log", base=2)
    figure.savefig(path, dpi=120)
