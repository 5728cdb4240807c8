"""MXNet's own ``backward`` and ``step`` beside the session's, while a scaled loss is pending."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from unifiedamp.backend import errors

from .._types import Trainer
from ..patches import AttributePatch, patched
from .gradients import GradientBuffer

STEPS = ("step", "update", "allreduce_grads")
"""The calls of a Trainer that use its gradients."""


def check_backward(buffers: Iterable[GradientBuffer], call: str) -> None:
    """Refuse gradients that did not come from the scaled loss.

    Raises:
        StepOrderError: naming both calls.
    """
    if any(buffer.has_native_gradients() for buffer in buffers):
        raise errors.StepOrderError(
            f"amp.{call}: backward() ran on a loss that is not scaled, between amp.scale_loss and amp.step: its "
            "gradients would be divided by a scale that they do not have; call scaled_loss.backward() instead of "
            "loss.backward() or autograd.backward(loss), after amp.discard_step(trainer) if this error was caught"
        )


def guard_steps(trainer: Trainer, buffer: GradientBuffer, check: Callable[[], None]) -> AttributePatch:
    """Refuse the Trainer's own calls while a scaled loss is pending, or ``check`` raises; return the patch, to be
    undone.
    """
    return patched(trainer, **{name: _guarded(getattr(trainer, name), name, buffer, check) for name in STEPS})


def _guarded(
    native: Callable[..., Any], name: str, buffer: GradientBuffer, check: Callable[[], None]
) -> Callable[..., Any]:
    @functools.wraps(native)
    def run(*args: object, **kwargs: object) -> Any:
        check()
        if buffer.pending:
            raise errors.StepOrderError(
                f"Trainer.{name}(): a loss was scaled for this Trainer by amp.scale_loss, and its gradients are the "
                f"session's until amp.step(trainer); call amp.step(trainer) instead of trainer.{name}(), or "
                "amp.discard_step(trainer) first"
            )
        return native(*args, **kwargs)

    return run
