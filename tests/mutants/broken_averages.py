"""Mutants of the toy's averages: when they move, from where, by how much, and what they give back."""

from __future__ import annotations

import numpy as np
from toy.ema import ToyAverage
from toy.training import ToyTraining

from .registry import mutant


@mutant("test_a_skipped_step_leaves_an_average_bit_for_bit")
class SkippedStepMovesTheAverage(ToyTraining):
    def step(self, optimizer, update_scale):
        outcome = super().step(optimizer, update_scale)
        if outcome.found_inf:
            for average in self.averages:
                average.begin(optimizer)
                average.end(optimizer)
        return outcome


@mutant("test_a_discarded_step_leaves_an_average")
class DiscardedStepMovesTheAverage(ToyTraining):
    def zero_grad(self, optimizer):
        if any(p.grad is not None for p in optimizer.parameters.values()) and not self.checked:
            for average in self.averages:
                average.begin(optimizer)
                average.end(optimizer)
        super().zero_grad(optimizer)


@mutant("test_an_interrupted_update_does_not_move_an_average")
class InterruptedStepMovesTheAverage(ToyTraining):
    def rollback(self, optimizers):
        for optimizer in optimizers:
            for average in self.averages:
                average.end(optimizer)
        return super().rollback(optimizers)


@mutant("test_each_average_moves_with_its_own_optimizer")
class EveryOptimizerMovesIt(ToyAverage):
    def begin(self, optimizer):
        for each in self.moved_by():
            super().begin(each)

    def end(self, optimizer):
        for each in self.moved_by():
            super().end(each)


@mutant("test_an_average_moves_with_applied_steps")
class AverageStartsFromZero(ToyAverage):
    def begin(self, optimizer):
        for name, p in self.names(optimizer).items():
            self.arrays.setdefault(name, np.zeros_like(p.data))


@mutant("test_an_average_moves_with_applied_steps")
class AverageStartsAfterTheFirstStep(ToyAverage):
    def end(self, optimizer):
        if not self.counts.get(id(optimizer)):
            self.begin(optimizer)
        super().end(optimizer)


@mutant("test_an_average_moves_with_applied_steps")
class AverageLagsOneStep(ToyAverage):
    """It moves towards the weights before the step."""

    def begin(self, optimizer):
        super().begin(optimizer)
        self.before = {name: p.data for name, p in self.names(optimizer).items()}

    def end(self, optimizer):
        after = {name: p.data for name, p in self.names(optimizer).items()}
        for name, p in self.names(optimizer).items():
            p.data = self.before[name]
        super().end(optimizer)
        for name, p in self.names(optimizer).items():
            p.data = after[name]


@mutant("test_an_average_moves_with_applied_steps")
class WarmupCountsFromZero(ToyAverage):
    """The n-th step takes the decay of the one before."""

    def end(self, optimizer):
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) - 1
        super().end(optimizer)
        self.counts[id(optimizer)] += 1


@mutant("test_the_model_answers_by_its_average_inside_and_by_its_weights_after")
class WeightsComeBackRounded(ToyAverage):
    def swap_out(self):
        self.kept = {name: np.float32(np.float16(value)) for name, value in (self.kept or {}).items()}
        super().swap_out()


@mutant("test_averages_of_two_models_are_swapped_in_together")
class SwappingOneSwapsTheOther(ToyAverage):
    """Restoring one model restores all."""

    def swap_out(self):
        for average in self._all:
            ToyAverage.swap_out(average)


@mutant("test_a_state_saved_while_swapped_in_holds_the_average")
class SavesTheWeightsWhileSwappedIn(ToyAverage):
    def read(self):
        return super().read() if self.kept is None else dict(self.kept)


@mutant("test_a_closed_session_keeps_what_it_had")
class StoppingForgets(ToyAverage):
    def stop(self):
        self.counts = {}
        super().stop()
