"""MXNet's own ``backward`` and ``step`` beside the session's, while a scaled loss is pending.

A backward pass leaves a mark on each gradient that it wrote. The session takes the marks off after its own passes, so
that a mark found later is another's. A Trainer's own calls are guarded on the object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from unifiedamp.backend import errors

from .gradients import Window

STEPS = ("step", "update", "allreduce_grads")
"""The calls of a Trainer that use its gradients."""


def check_backward(windows: Iterable[Window], call: str) -> None:
    """Refuse gradients that did not come from the scaled loss.

    Raises:
        StepOrderError: naming both calls.
    """
    if any(window.has_others() for window in windows):
        raise errors.StepOrderError(
            f"amp.{call}: backward() ran on a loss that is not scaled, between amp.scale_loss and amp.step: its "
            "gradients would be divided by a scale that they do not have; call scaled_loss.backward() instead of "
            "loss.backward() or autograd.backward(loss), after amp.discard_step(trainer) if this error was caught"
        )


def guard_steps(trainer: Any, window: Window) -> Callable[[], None]:
    """Have the Trainer's own calls refused while a scaled loss is pending; return what ends that."""
    found = {name: vars(trainer)[name] for name in STEPS if name in vars(trainer)}
    for name in STEPS:
        setattr(trainer, name, _guarded(getattr(trainer, name), name, window))

    def end() -> None:
        for name in STEPS:
            vars(trainer).pop(name, None)
        vars(trainer).update(found)

    return end


def _guarded(native: Callable[..., Any], name: str, window: Window) -> Callable[..., Any]:
    @functools.wraps(native)
    def run(*args: Any, **kwargs: Any) -> Any:
        if window.pending:
            raise errors.StepOrderError(
                f"Trainer.{name}(): a loss was scaled for this Trainer by amp.scale_loss, and its gradients are the "
                f"session's until amp.step(trainer); call amp.step(trainer) instead of trainer.{name}(), or "
                "amp.discard_step(trainer) first"
            )
        return native(*args, **kwargs)

    return run
