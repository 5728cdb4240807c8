"""MXNet's own ``backward`` and ``step`` beside the session's, while a scaled loss is pending."""

from __future__ import annotations

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


class GuardedCall:
    """A call of a Trainer in the place of the Trainer's own.

    Copies of the Trainer, also pickled ones, have their own call: they belong to no session.

    Args:
        trainer: whose call it is.
        name: the call's.
        buffer: the Trainer's gradients.
        check: refuses the call where it must not be now.
    """

    def __init__(self, trainer: Trainer, name: str, buffer: GradientBuffer, check: Callable[[], None]) -> None:
        self._trainer, self._name = trainer, name
        self._native: Callable[..., Any] = getattr(trainer, name)
        self._buffer, self._check = buffer, check
        self.__wrapped__ = self._native  # for ``inspect.signature``

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the Trainer's own call."""
        self._check()
        if self._buffer.pending:
            name = self._name
            raise errors.StepOrderError(
                f"Trainer.{name}(): a loss was scaled for this Trainer by amp.scale_loss, and its gradients are the "
                f"session's until amp.step(trainer); call amp.step(trainer) instead of trainer.{name}(), or "
                "amp.discard_step(trainer) first"
            )
        return self._native(*args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self._trainer, self._name)


def guard_steps(trainer: Trainer, buffer: GradientBuffer, check: Callable[[], None]) -> AttributePatch:
    """Refuse the Trainer's own calls while a scaled loss is pending, or ``check`` raises; return the patch, to be
    undone.
    """
    return patched(trainer, **{name: GuardedCall(trainer, name, buffer, check) for name in STEPS})
