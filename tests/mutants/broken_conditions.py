"""Mutants of the toy's conditions: what a dropped step counts as, and what it does to scale and averages."""

from __future__ import annotations

from dataclasses import replace

from toy.training import ToyTraining

from unifiedamp.backend import StepResult, result

from .registry import mutant


class Dropping(ToyTraining):
    """Calls ``dropped`` after each step that a condition alone drops."""

    def step(self, optimizer, update_scale):
        outcome = super().step(optimizer, update_scale)
        return self.dropped(outcome, optimizer, update_scale) if outcome.reason == result.DISCARDED else outcome

    def dropped(self, outcome, optimizer, update_scale):
        raise NotImplementedError


@mutant("test_a_condition_on_the_device")
class ADroppedStepCountsAsSkipped(Dropping):
    def dropped(self, outcome, optimizer, update_scale):
        self.state = replace(self.state, skipped_steps=self.state.skipped_steps + 1)
        return outcome


@mutant("test_a_condition_on_the_device")
class ADroppedStepCountsForTheGrowth(Dropping):
    def dropped(self, outcome, optimizer, update_scale):
        if self.spec.loss_scale.enabled:
            self.state = self.spec.loss_scale.next_state(self.state, False)
        return outcome


@mutant("test_averages_rest")
class ADroppedStepMovesTheAverage(Dropping):
    def dropped(self, outcome, optimizer, update_scale):
        for average in self.averages:
            average.begin(optimizer)
            average.end(optimizer)
        return outcome


@mutant("test_of_results_observers_and_schedulers")
class ADroppedStepSaysApplied(Dropping):
    def dropped(self, outcome, optimizer, update_scale):
        return StepResult.of(True, False, result.APPLIED, outcome.scale, outcome.next_scale)


@mutant("test_a_condition_on_the_device")
class AConditionHidesAnOverflow(ToyTraining):
    def _decide(self, optimizer):
        found = super()._decide(optimizer)
        return found and id(optimizer) not in self.dropping


@mutant("test_a_window_is_dropped_as_a_whole")
class TheLastMicroBatchDecides(ToyTraining):
    def scale_loss(self, loss, optimizers):
        self.dropping -= {id(optimizer) for optimizer in optimizers}
        return super().scale_loss(loss, optimizers)
