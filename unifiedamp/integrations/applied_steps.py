"""Holds learning-rate schedulers where every step of their optimizer was skipped."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..backend import StepResult

MOST = 8
"""Results that are kept unread: an older one has long been computed, so that reading it does not wait."""


class AppliedSteps:
    """Whether an optimizer's step was applied since the last question; reads as few results as it can."""

    def __init__(self) -> None:
        self._applied = False
        self._results: list[StepResult] = []

    def note(self, result: StepResult) -> None:
        """Note a step."""
        if self._applied:
            return
        self._results.append(result)
        if len(self._results) > MOST and self._results.pop(0).applied:
            self._applied = True
            self._results.clear()

    def all_skipped(self) -> bool:
        """Return whether there were steps since the last call, and none was applied; may wait for the device."""
        results, applied = self._results, self._applied
        self._results, self._applied = [], False
        return bool(results) and not applied and not any(result.applied for result in reversed(results))


class HeldScheduler:
    """A scheduler whose ``step`` does nothing where all steps of its optimizer since the last one were skipped.

    The class of a scheduler is replaced by a subclass of this and of its own, so that it stays an instance of its class
    and its ``state_dict`` has nothing more than before.
    """

    _applied_steps: AppliedSteps
    _own_class: type

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step, or do nothing."""
        if self._applied_steps.all_skipped():
            return None
        return super().step(*args, **kwargs)  # type: ignore[misc]  # of the scheduler's own class

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as the scheduler's own class."""
        return _made, (self._own_class,), vars(self)


def _made(kind: Any) -> Any:
    return kind.__new__(kind)


def hold(scheduler: Any, applied: AppliedSteps) -> bool:
    """Hold a scheduler; return False for one that follows a metric, or is held already."""
    kind = type(scheduler)
    if isinstance(scheduler, (ReduceLROnPlateau, HeldScheduler)):
        return False
    own = {"_applied_steps": applied, "_own_class": kind, "__module__": kind.__module__, "__doc__": kind.__doc__}
    scheduler.__class__ = type(kind.__name__, (HeldScheduler, kind), own)
    return True


def release(scheduler: Any) -> None:
    """Undo :func:`hold`. Idempotent."""
    if isinstance(scheduler, HeldScheduler):
        scheduler.__class__ = scheduler._own_class
