"""Mutants of the scale's moves, of what is told, of regions, and of what is left behind."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

from toy.backend import ToyBackend
from toy.device import ToyDevice
from toy.precision import ToyPrecision
from toy.training import ToyTraining

from unifiedamp.backend import NonFiniteReport, StepResult, result

from .registry import mutant


@mutant("test_the_scale_at_every_step")
class TheCeilingHoldsForDoubling(ToyTraining):
    """Growth by another factor passes it."""

    def update_scale(self):
        before, grew = self.state, bool(self.found) and not any(self.found.values())
        super().update_scale()
        factor = self.spec.loss_scale.growth_factor
        if grew and self.state.good_steps == 0 and factor != 2.0:
            self.state = replace(self.state, scale=min(before.scale * factor, 3e38))


@mutant("test_the_scale_at_every_step")
class HysteresisIsOneLonger(ToyTraining):
    def update_scale(self):
        before, limit = self.state, self.spec.loss_scale.hysteresis
        overflow = any(self.found.values())
        super().update_scale()
        if overflow and limit > 1 and before.bad_steps + 1 == limit:
            self.state = replace(self.state, scale=before.scale)


@mutant("test_exhaustion_comes_at_the_limit_and_not_before")
class CountsOneBadStepTooFew(ToyTraining):
    def read_state(self):
        return replace(self.state, bad_steps=max(0, self.state.bad_steps - 1))


@mutant("test_exhaustion_comes_at_the_limit_and_not_before")
class CountsBadStepsFromTheFirst(ToyTraining):
    """A finite step in between ends nothing."""

    def update_scale(self):
        before = self.state.bad_steps
        super().update_scale()
        if not self.state.bad_steps:
            self.state = replace(self.state, bad_steps=before)


@mutant("test_three_with_one_that_skips")
class TheLastOptimizerDecides(ToyTraining):
    def update_scale(self):
        self.found = dict([*self.found.items()][-1:])
        super().update_scale()


@mutant("test_a_step_without_gradients_decides_nothing")
class NoGradientsEndNothing(ToyTraining):
    def step(self, optimizer, update_scale):
        return super().step(optimizer, update_scale and bool(self._grads(optimizer)))


@mutant("test_a_discarded_step_decides_nothing")
class ADiscardedStepForgetsTheOthers(ToyTraining):
    def zero_grad(self, optimizer):
        discarded = bool(self._grads(optimizer)) and self.checked.get(id(optimizer)) and len(self.found) == 1
        super().zero_grad(optimizer)
        if discarded and len(self.optimizers) > 1:
            self.found = {}


@mutant("test_of_discarded_steps")
class ADiscardedStepIsCounted(ToyTraining):
    stepping = False

    def step(self, optimizer, update_scale):
        self.stepping = True
        try:
            return super().step(optimizer, update_scale)
        finally:
            self.stepping = False

    def zero_grad(self, optimizer):
        if not self.stepping:
            self._count(True)
        super().zero_grad(optimizer)


@mutant("test_of_steps_without_gradients")
class NoGradientsCountAsApplied(ToyTraining):
    def step(self, optimizer, update_scale):
        told = super().step(optimizer, update_scale)
        if told.reason != result.NO_GRADIENTS:
            return told
        return StepResult.of(True, False, result.APPLIED, told.scale, told.next_scale)


@mutant("test_each_step_has_its_result_and_the_scale_is_updated_at_the_end")
class TellsOnlyTheNewScale(ToyTraining):
    def step(self, optimizer, update_scale):
        told = super().step(optimizer, update_scale)
        return StepResult.of(told.applied, told.found_inf, told.reason, told.next_scale, told.next_scale)


@mutant("test_names_are_those_of_the_last_skipped_step")
class RemembersTheFirstSkip(ToyTraining):
    def _found(self, bad):
        before = self.report
        found = super()._found(bad)
        if before != NonFiniteReport():
            self.report = before
        return found


@mutant("test_a_region_inside_inference_does_not_train")
class RegionsInsideInferenceTrain(ToyPrecision):
    @contextmanager
    def autocast(self, enabled, policy):
        before, self.inferring = self.inferring, False
        try:
            with super().autocast(enabled, policy):
                yield
        finally:
            self.inferring = before


@mutant("test_models_and_optimizers_are_as_before")
class ClosingLeavesTheCasts(ToyBackend):
    def close(self):
        """Forgotten."""


@mutant("test_a_name_is_no_prefix")
class NamesArePrefixes(ToyTraining):
    def prepare(self, models, optimizers):
        prepared = super().prepare(models, optimizers)
        for model in models:
            for name, dtype in list(model.layer_dtypes.items()):
                model.layer_dtypes |= {each: dtype for each in model.layers if each.startswith(name)}
        return prepared


@mutant("test_an_optimizer_prepared_later_takes_part")
class ForgetsWhatWasPrepared(ToyTraining):
    def prepare(self, models, optimizers):
        self.state = self.spec.loss_scale.initial_state()
        return super().prepare(models, optimizers)


@mutant("test_all_of_them_in_order")
class SwapsNeighbours(ToyDevice):
    def prefetch(self, batches, size):
        made = list(super().prefetch(batches, size))
        return [batch for one, two in pairwise(made[:2]) for batch in (two, one)] + made[2:]


@mutant("test_an_error_comes_in_its_place")
class AnErrorComesFirst(ToyDevice):
    def prefetch(self, batches, size):
        return list(super().prefetch(batches, size))
