"""Steps, what they say of themselves, and the update of the scale."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import NonFiniteReport, ScaleState, StepReason, StepResult, result

from .registry import TrainingFault, fault
from .scaling import TRACE

SKIPPED = "test_a_skipped_step_advances_nothing"
TELLS = "test_step_result_tells_what_happened_also_later"


@fault(TRACE)
class StepDropped(TrainingFault):
    """A step applies nothing, and says that it did."""

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        scale = self.read_state().scale
        self.zero_grad(optimizer)
        return StepResult.of(True, False, result.APPLIED, scale, scale)


@fault(TRACE)
class ScaleNeverUpdated(TrainingFault):
    """No step updates the scale."""

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        return self.inner.step(optimizer, False)

    def update_scale(self) -> None:
        """Forgotten."""


@fault(TRACE)
class ScaleUpdatedOneStepLate(TrainingFault):
    """What a step found updates the scale when the next one begins."""

    _due = False

    def _catch_up(self) -> None:
        if self._due:
            self._due = False
            self.update_scale()

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        self._catch_up()
        outcome = self.inner.step(optimizer, False)
        self._due = update_scale
        return outcome


@fault("test_each_skips_by_itself_and_the_scale_is_updated_once", needs="several_optimizers")
class ScaleUpdatedByEachOptimizer(TrainingFault):
    """Each optimizer's step updates the scale, not each iteration."""

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        return self.inner.step(optimizer, True)


@fault("test_training_one_more_often_than_the_other", needs="several_optimizers")
class OpenIterationsNotEnded(TrainingFault):
    """An iteration that core ends between steps updates nothing."""

    def update_scale(self) -> None:
        """Forgotten."""


@fault("test_discard_step_drops_the_window")
class GradientsNotDropped(TrainingFault):
    """A discarded window stays."""

    def zero_grad(self, optimizer: Any) -> None:
        """Forgotten."""


class _Tells(TrainingFault):
    def _values(self, outcome: StepResult) -> StepResult:
        raise NotImplementedError

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        outcome = self.inner.step(optimizer, update_scale)
        return outcome if self.tracing() else self._values(outcome)


@fault(TELLS)
class ResultSaysAlwaysApplied(_Tells):
    """A step's result says that it was applied, whatever happened."""

    def _values(self, outcome: StepResult) -> StepResult:
        return StepResult.of(True, False, result.APPLIED, outcome.scale, outcome.next_scale)


@fault(TELLS)
class ResultInverted(_Tells):
    """A step's result says the opposite."""

    def _values(self, outcome: StepResult) -> StepResult:
        reason: StepReason = result.NON_FINITE if outcome.applied else result.APPLIED
        return StepResult.of(not outcome.applied, outcome.applied, reason, outcome.scale, outcome.next_scale)


@fault(TELLS)
class ResultHasItsScalesSwapped(_Tells):
    """A step's result takes the scale after it for the one that it ran with."""

    def _values(self, outcome: StepResult) -> StepResult:
        return StepResult.of(outcome.applied, outcome.found_inf, outcome.reason, outcome.next_scale, outcome.scale)


@fault(TELLS)
class ResultGivesNoReason(_Tells):
    """A skipped step's result gives the reason of an applied one."""

    def _values(self, outcome: StepResult) -> StepResult:
        return StepResult.of(outcome.applied, outcome.found_inf, result.APPLIED, outcome.scale, outcome.next_scale)


@fault("test_exhaustion_names_tensors_and_the_loss")
class ReportNamesNothing(TrainingFault):
    """What was not finite is not reported."""

    def nonfinite_report(self) -> NonFiniteReport:
        return NonFiniteReport((), self.inner.nonfinite_report().loss_was_finite)


@fault("test_exhaustion_names_tensors_and_the_loss")
class ReportInvertsTheLoss(TrainingFault):
    """A loss that was finite is reported as one that was not."""

    def nonfinite_report(self) -> NonFiniteReport:
        found = self.inner.nonfinite_report()
        return NonFiniteReport(found.tensors, None if found.loss_was_finite is None else not found.loss_was_finite)


@fault("test_any_loss_of_the_step_is_told")
class ReportOfTheLastLoss(TrainingFault):
    """The report tells of the last loss of a step alone."""

    _last: Any = None

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        loss = self.inner.backward(closure, optimizers)
        self._last = None if self.tracing() else loss
        return loss

    def nonfinite_report(self) -> NonFiniteReport:
        found = self.inner.nonfinite_report()
        if self._last is None:
            return found
        last = np.asarray(self.backend.device.to_numpy(self._last))
        return NonFiniteReport(found.tensors, bool(np.isfinite(last).all()))


@fault("test_exhaustion_names_tensors_and_the_loss")
class ReportOfTheFirstSkip(TrainingFault):
    """The report is that of the first step that was skipped."""

    _first: NonFiniteReport | None = None

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        outcome = self.inner.step(optimizer, update_scale)
        if self._first is None and not self.tracing() and outcome.found_inf:
            self._first = self.inner.nonfinite_report()
        return outcome

    def nonfinite_report(self) -> NonFiniteReport:
        return self._first or self.inner.nonfinite_report()


@fault(SKIPPED)
class SkippedStepsCountAsApplied(TrainingFault):
    """Skipped steps are counted among the applied ones."""

    def read_state(self) -> ScaleState:
        state = self.inner.read_state()
        total = state.applied_steps + state.skipped_steps
        return ScaleState(state.scale, state.good_steps, state.bad_steps, total, 0)


@fault("test_training_one_more_often_than_the_other", "test_one_loss_for_two_optimizers", needs="several_optimizers")
class OptimizersReturnedInReverse(TrainingFault):
    """``prepare`` returns optimizers in another order than they were given in."""

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        prepared, found = self.inner.prepare(models, optimizers)
        return prepared, found[::-1]


@fault("test_a_closure_runs_once")
class ClosureRunTwice(TrainingFault):
    """``backward`` computes the loss once for nothing before it differentiates."""

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        with self.backend.precision.autocast(True, None):
            closure()
        return self.inner.backward(closure, optimizers)
