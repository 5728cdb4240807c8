"""Shared by the example scripts: command line, resized images, the default policy of the machine, a log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import unifiedamp as ua
from examples import models
from examples.data import Array, Data, load
from unifiedamp.cli.errors import reports_errors
from unifiedamp.workloads.training.history import History
from unifiedamp.workloads.training.report import draw

Smoke = Annotated[bool, typer.Option("--smoke", help="Run a few steps of a small model on a CPU.")]
PolicyName = Annotated[str | None, typer.Option(help="float32, mixed_float16, ... [default: the machine's]")]
SIDE = 32
"""Height and width of the images: the minimum of keras.applications."""


def run(main: Callable[..., None]) -> None:
    """Run a script's ``main`` with the command-line options; report user errors in one line."""
    typer.run(reports_errors(main))


def mixed_policy(backend: str) -> str:
    """Return the fastest mixed policy of the machine; if it runs none, print the reason and return float32."""
    policies = ua.Amp(backend, "float32").capabilities.policies
    mixed = {name: policies[name] for name in ("mixed_float16", "mixed_bfloat16")}
    fast = [name for name, answer in mixed.items() if answer and answer.helps]
    if not fast and not mixed["mixed_bfloat16"]:
        print(f"float32, with a loss scale all the same: {mixed['mixed_bfloat16'].reason}")
    return [*fast, "mixed_bfloat16" if mixed["mixed_bfloat16"] else "float32"][0]


def images(backend: str, smoke: bool, channels: int = 3) -> Data:
    """Return Fashion-MNIST (scikit-learn's digits in a smoke run), resized to 32 x 32 pixels."""
    data = load("digits" if smoke else "fashion-mnist", None, models.for_backend(backend))
    train, test = (_resized(part, channels) for part in (data.train_images, data.test_images))
    return replace(data, train_images=train, test_images=test)


def _resized(images: Array, channels: int) -> Array:
    times = SIDE // images.shape[1]
    images = images.repeat(times, 1).repeat(times, 2).repeat(channels, 3)
    margin = (SIDE - images.shape[1]) // 2
    return np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), "edge")


def batches(amp: ua.Amp, data: Data, size: int, epochs: int, steps: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield native batches in the framework's axis order, for ``epochs`` epochs or ``steps`` steps."""
    axes = models.for_backend(amp.backend.name).IMAGE_AXES
    every = itertools.chain.from_iterable(data.batches(axes, size, 0, epoch) for epoch in range(epochs))
    for x, y in itertools.islice(every, steps):
        yield amp.to_native(x), amp.to_native(y)


@dataclass
class Log:
    """Records losses and the loss scale of a run; prints a line every ``every`` steps and a summary.

    Args:
        amp: the session.
        every: steps between lines. Losses are read only then, so other steps do not synchronize.
    """

    amp: ua.Amp
    every: int = 10
    history: History = field(default_factory=History)

    def add(self, loss: Any) -> None:
        """Add the native loss of a step."""
        self.history.add_loss(loss)
        if self.history.batches % self.every == 0:
            self.look()
            step, loss = self.history.batches, self.history.losses[-1]
            print(f"step {step:>6}   loss {loss:<8.4f} scale {self.amp.loss_scale:g}")

    def look(self) -> None:
        """Read the losses and the scale."""
        self.history.read_losses(self.amp.to_numpy)
        self.history.scales.append((self.history.batches, self.amp.loss_scale, self.amp.skipped_steps))

    def end(self) -> None:
        """Print the summary."""
        self.look()
        print(summary(self.history.losses, self.amp))

    def draw(self, path: Path) -> None:
        """Plot loss and loss scale to a PNG."""
        lacking = draw(f"policy {self.amp.policy}", self.history, 1, path)
        print(f"no picture: {lacking}" if lacking else f"loss and scale: {path}")


def summary(losses: list[float], state: Any) -> str:
    """Return one line: mean loss of the first and last five steps (or epochs), loss scale, applied and skipped steps.

    Args:
        losses: the losses of all steps, or of all epochs.
        state: the session, or a ``ScaleState``.
    """
    few = max(1, min(5, len(losses) // 2))
    scale = state.loss_scale if isinstance(state, ua.Amp) else state.scale
    steps = f"{state.applied_steps} steps applied, {state.skipped_steps} skipped"
    return f"loss {np.mean(losses[:few]):.4f} -> {np.mean(losses[-few:]):.4f}   scale {scale:g}   {steps}"
