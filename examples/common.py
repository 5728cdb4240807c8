"""What the example scripts share: the command line, images in one size, the policy that fits the machine, a log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from unifiedamp_examples.data import Array, Data, load
from unifiedamp_examples.history import History
from unifiedamp_examples.report import draw

import unifiedamp as ua
from unifiedamp.cli.errors import reports_errors
from unifiedamp_examples import models

Smoke = Annotated[bool, typer.Option("--smoke", help="A few steps of a small model, to see it run on a CPU.")]
PolicyName = Annotated[str | None, typer.Option(help="float32, mixed_float16, ... [what fits the machine]")]
SIDE = 32
"""Height and width of the images; keras.applications takes no smaller ones."""


def run(main: Callable[..., None]) -> None:
    """Run a script's ``main`` with the options of the command line; a mistake is one line."""
    typer.run(reports_errors(main))


def mixed_policy(backend: str) -> str:
    """Return the mixed policy that the machine runs best, or float32, said plainly, where it runs none."""
    policies = ua.Amp(backend, "float32").capabilities.policies
    mixed = {name: policies[name] for name in ("mixed_float16", "mixed_bfloat16")}
    fast = [name for name, answer in mixed.items() if answer and answer.helps]
    if not fast and not mixed["mixed_bfloat16"]:
        print(f"float32, with a loss scale all the same: {mixed['mixed_bfloat16'].reason}")
    return [*fast, "mixed_bfloat16" if mixed["mixed_bfloat16"] else "float32"][0]


def images(backend: str, smoke: bool, channels: int = 3) -> Data:
    """Return Fashion-MNIST, or scikit-learn's digits for a smoke run, as images of 32 x 32 pixels."""
    data = load("digits" if smoke else "fashion-mnist", None, models.for_backend(backend))
    train, test = (_resized(part, channels) for part in (data.train_images, data.test_images))
    return replace(data, train_images=train, test_images=test)


def _resized(images: Array, channels: int) -> Array:
    times = SIDE // images.shape[1]
    images = images.repeat(times, 1).repeat(times, 2).repeat(channels, 3)
    margin = (SIDE - images.shape[1]) // 2
    return np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), "edge")


def batches(amp: ua.Amp, data: Data, size: int, epochs: int, steps: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield native batches of ``size``, as the framework wants their axes, for so many epochs or ``steps``."""
    axes = models.for_backend(amp.backend.name).IMAGE_AXES
    every = itertools.chain.from_iterable(data.batches(axes, size, 0, epoch) for epoch in range(epochs))
    for x, y in itertools.islice(every, steps):
        yield amp.to_native(x), amp.to_native(y)


@dataclass
class Log:
    """Losses and the loss scale of a run; a line now and then, and one at the end.

    Args:
        amp: the session.
        every: steps from one line to the next. Only then are losses read: the steps between wait for nothing.
    """

    amp: ua.Amp
    every: int = 10
    history: History = field(default_factory=History)

    def add(self, loss: Any) -> None:
        """Take a step's native loss."""
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
        """Print how the run went."""
        self.look()
        print(summary(self.history.losses, self.amp))

    def draw(self, path: Path) -> None:
        """Draw loss and loss scale into a PNG."""
        lacking = draw(self.history, 1, path)
        print(f"no picture: {lacking}" if lacking else f"loss and scale: {path}")


def summary(losses: list[float], state: Any) -> str:
    """Return a run in a line: mean losses of its begin and end (five steps or epochs, if it has ten), and the scale.

    Args:
        losses: of every step, or of every epoch.
        state: the session, or a ``ScaleState``.
    """
    few = max(1, min(5, len(losses) // 2))
    scale = state.loss_scale if isinstance(state, ua.Amp) else state.scale
    steps = f"{state.applied_steps} steps applied, {state.skipped_steps} skipped"
    return f"loss {np.mean(losses[:few]):.4f} -> {np.mean(losses[-few:]):.4f}   scale {scale:g}   {steps}"
