"""The picture of a run: loss, score and loss scale over the optimizer steps, and which of these were skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any

from .history import History

WIDTH = 84
"""Characters that a line of the title has room for."""
HIDDEN = ("samples",)
"""What an evaluation may return that is no score."""


def draw(title: str, history: History, window: int, path: Path) -> str:
    """Draw a PNG; return why it could not be drawn, or an empty string.

    Args:
        title: stands above the picture.
        history: what happened.
        window: batches per optimizer step.
        path: the file.
    """
    try:
        _draw(title, history, window, path)
    except ImportError:
        return "matplotlib is not installed"
    except Exception as error:  # a failed plot must not end a training run
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def _draw(title: str, history: History, window: int, path: Path) -> None:
    from matplotlib.figure import Figure

    panels = _panels(history, window)
    figure = Figure(figsize=(8, 1.2 + 2.1 * len(panels)), layout="constrained")
    lines = [part for line in title.splitlines() for part in wrap(line, WIDTH, break_on_hyphens=False)]
    figure.suptitle("\n".join(lines).replace("$", r"\$"), fontsize=11)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("optimizer step")
    figure.savefig(path, dpi=120)


def _panels(history: History, window: int) -> list[Callable[[Any], None]]:
    """Return what draws each panel: the loss always, a score and the loss scale where there are some."""

    def loss(axis: Any) -> None:
        axis.plot([(i + 1) / window for i in range(len(history.losses))], history.losses, linewidth=0.8)
        axis.set(ylabel="training loss", yscale="log")

    panels: list[Callable[[Any], None]] = [loss]
    name = next((key for row in history.epochs for key in row["scores"] if key not in HIDDEN), None)
    if name is not None:
        panels.append(lambda axis: _score(axis, history, name))
    if any(row[1] != 1.0 for row in history.scales):
        panels.append(lambda axis: _scale(axis, history))
    return panels


def _score(axis: Any, history: History, name: str) -> None:
    rows = [row for row in history.epochs if row["scores"].get(name) is not None]
    steps = [row["applied_steps"] + row["skipped_steps"] for row in rows]
    axis.plot(steps, [row["scores"][name] for row in rows], marker="o", markersize=3)
    axis.set(ylabel=name)


def _scale(axis: Any, history: History) -> None:
    axis.step([row[0] for row in history.scales], [row[1] for row in history.scales], where="post", label="loss scale")
    before = [0, *(row[2] for row in history.scales)]
    skipped = [row for row, earlier in zip(history.scales, before, strict=False) if row[2] > earlier]
    if skipped:
        axis.plot([row[0] for row in skipped], [row[1] for row in skipped], "x", color="tab:red", label="skipped steps")
        axis.legend(loc="best")
    axis.set(ylabel="loss scale")
    axis.set_yscale("log", base=2)
