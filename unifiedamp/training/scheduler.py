"""Schedulers that ``amp.step`` steps together with the optimizer: which ones it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import StepOrderError, WrongObjectError


class SchedulerCheck:
    """Refuses schedulers that ``amp.step`` cannot step; checks each one once.

    Args:
        tracing: returns whether the framework is tracing a compiled step.
    """

    def __init__(self, tracing: Callable[[], bool]) -> None:
        self._tracing = tracing
        self._known: Any = None

    def check(self, scheduler: Any) -> None:
        """Refuse a scheduler.

        Raises:
            StepOrderError: a compiled step is being traced.
            WrongObjectError: see :func:`check_scheduler`.
        """
        if self._tracing():
            raise StepOrderError(
                "amp.step(optimizer, scheduler): a scheduler cannot be gated inside a compiled step; give the "
                "optimizer a schedule of the framework (it counts applied steps only), or step it outside"
            )
        if scheduler is not self._known:
            check_scheduler(scheduler)
            self._known = scheduler


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler that cannot be stepped after an applied step.

    Raises:
        WrongObjectError: it has no ``step``, or one that needs arguments.
    """
    name, step = type(scheduler).__name__, getattr(scheduler, "step", None)
    if not callable(step):
        raise WrongObjectError(f"amp.step(optimizer, scheduler): {name} has no step() to call after an applied step")
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return  # written in C, without a signature
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]
    if needed:
        raise WrongObjectError(
            f"amp.step(optimizer, scheduler): {name}.step needs {', '.join(needed)}, which amp.step does not know; "
            f"step it yourself: 'if amp.step(optimizer).applied: scheduler.step({', '.join(needed)})', or once per "
            "epoch after validation"
        )
