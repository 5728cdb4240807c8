"""torch: ``torch.autocast``, and ``torch.amp.GradScaler`` for the scale."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

scope = around = nullcontext
tensor = torch.from_numpy


def begin() -> None:
    """Forget what was compiled for other rows: dynamo stops compiling a function after eight versions of it."""
    torch._dynamo.reset()


def finish() -> None:
    """CPU steps are done when they return."""


def train_step(model: Any, optimizer: Any, loss_fn: Any, scaled: bool, compiled: bool) -> Callable[..., Any]:
    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    scaler = torch.amp.GradScaler("cpu")

    def with_scale(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    step = with_scale if scaled else plain
    return torch.compile(step) if compiled else step
