"""Conditions of ``amp.skip_if``: which windows they drop."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unifiedamp.backend import Backend, StepResult

from .registry import TrainingFault, fault

DEVICE = "test_a_condition_on_the_device"


@fault(DEVICE)
class ConditionsIgnored(TrainingFault):
    """Conditions drop nothing."""

    def skip_if(self, condition: Any, optimizers: Sequence[Any]) -> None:
        """Forgotten."""


@fault("test_conditions_are_joined_by_or")
class TheLastConditionCounts(TrainingFault):
    """Of several conditions for one step, only the last is looked at."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._last: dict[int, Any] = {}

    def skip_if(self, condition: Any, optimizers: Sequence[Any]) -> None:
        self._last |= {id(optimizer): condition for optimizer in optimizers}

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        if id(optimizer) in self._last:
            self.inner.skip_if(self._last.pop(id(optimizer)), [optimizer])
        return self.inner.step(optimizer, update_scale)


@fault("test_the_open_windows_are_dropped", needs="several_optimizers")
class ConditionsReachOneOptimizer(TrainingFault):
    """A condition drops the step of the first optimizer alone."""

    def skip_if(self, condition: Any, optimizers: Sequence[Any]) -> None:
        self.inner.skip_if(condition, optimizers[:1])


@fault("test_a_discarded_window_takes_its_condition_along")
class ConditionsOutliveTheirWindow(TrainingFault):
    """The condition of a window that is discarded drops the next one's step."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._given: dict[int, Any] = {}

    def skip_if(self, condition: Any, optimizers: Sequence[Any]) -> None:
        self._given |= {id(optimizer): condition for optimizer in optimizers}
        self.inner.skip_if(condition, optimizers)

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        if id(optimizer) in self._given:
            self.inner.skip_if(self._given.pop(id(optimizer)), [optimizer])
        return self.inner.step(optimizer, update_scale)
