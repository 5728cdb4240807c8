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
        prepared: returns whether the session has prepared an optimizer.
    """

    def __init__(self, tracing: Callable[[], bool], prepared: Callable[[Any], bool]) -> None:
        self._tracing, self._prepared = tracing, prepared
        self._known: tuple[Any, Any] = (None, None)

    def check(self, scheduler: Any, optimizer: Any) -> None:
        """Refuse a scheduler that is to be stepped with ``optimizer``.

        Raises:
            StepOrderError: a compiled step is being traced.
            WrongObjectError: see :func:`check_scheduler`; it belongs to another optimizer.
        """
        if self._tracing():
            raise StepOrderError(
                "amp.step(optimizer, scheduler): a scheduler cannot be gated inside a compiled step; give the "
                "optimizer a schedule of the framework (it counts applied steps only), or step it outside"
            )
        known, owner = self._known
        if scheduler is not known or optimizer is not owner:
            check_scheduler(scheduler)
            self._check_owner(scheduler, optimizer)
            self._known = scheduler, optimizer

    def _check_owner(self, scheduler: Any, optimizer: Any) -> None:
        owner = getattr(scheduler, "optimizer", None)
        if owner is None or owner is optimizer:
            return
        prepared = self._prepared(owner)
        # One of another type that was not prepared may wrap this optimizer, or be wrapped by it.
        if prepared or type(owner) is type(optimizer):
            which = "another optimizer of this session" if prepared else "an optimizer that was not prepared"
            raise WrongObjectError(
                f"amp.step({type(optimizer).__name__}, scheduler): this {type(scheduler).__name__} belongs to {which}, "
                f"a {type(owner).__name__}, and would change its learning rate alone: pass the scheduler that was made "
                "with the optimizer of this step"
            )


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
