"""The mutants: the toy backend with one rule broken each, and the test that must say so."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from toy import autograd as toy
from toy.precision import ToyPrecision
from toy.training import Scaled, ToyTraining

from unifiedamp.backend import NonFiniteReport, StepResult, result

from .registry import mutant


@mutant("test_canonical_trace")
class NewScaleOneStepLate(ToyTraining):
    late: float | None = None

    def step(self, optimizer, update_scale):
        before, late = self.state.scale, self.late
        outcome = super().step(optimizer, update_scale)
        self.late = self.state.scale if self.state.scale != before else None
        if self.late is not None or late is not None:
            self.state = replace(self.state, scale=before if self.late is not None else late)
        return outcome


@mutant("test_a_skipped_step_advances_nothing")
class SkippedStepCounts(ToyTraining):
    def step(self, optimizer, update_scale):
        outcome = super().step(optimizer, update_scale)
        if outcome.found_inf:
            optimizer.steps += 1
        return outcome


@mutant("test_a_skipped_step_advances_nothing")
class SkippedStepMovesTheMoments(ToyTraining):
    """Applies zeros instead of skipping."""

    def step(self, optimizer, update_scale):
        outcome = super().step(optimizer, update_scale)
        if outcome.found_inf:
            optimizer.apply({name: np.zeros_like(p.data) for name, p in optimizer.parameters.items()})
            optimizer.steps -= 1
        return outcome


@mutant("test_the_scale_stops_at_its_floor_and_ceiling")
class NoFloor(ToyTraining):
    def update_scale(self):
        before = self.state
        overflow = any(self.found.values())
        super().update_scale()
        if overflow:
            self.state = replace(self.state, scale=before.scale * self.spec.loss_scale.backoff_factor)


@mutant("test_the_scale_stops_at_its_floor_and_ceiling")
class NoCeiling(ToyTraining):
    def update_scale(self):
        before, grew = self.state, self.found and not any(self.found.values())
        super().update_scale()
        if grew and self.state.good_steps == 0:
            self.state = replace(self.state, scale=before.scale * self.spec.loss_scale.growth_factor)


@mutant("test_finiteness_is_decided_before_clipping")
class ChecksAfterClipping(ToyTraining):
    def _decide(self, optimizer):
        if self.spec.loss_scale.enabled and id(optimizer) not in self.checked:
            self.unscale(optimizer)
        return any(not np.isfinite(grad).all() for grad in self._grads(optimizer).values())


@mutant("test_overflow_on_one_device_skips_on_all")
class ChecksTheFirstDeviceOnly(ToyTraining):
    def _found(self, bad):
        return super()._found([name for name in bad if "@" not in name])


@mutant("test_resuming_at_every_step_under_any_backend")
class StateIsDropped(ToyTraining):
    def write_state(self, state):
        """Forget it."""


@mutant("test_resuming_at_every_step_under_any_backend")
class GoodStepsAreNotSaved(ToyTraining):
    def write_state(self, state):
        self.state = replace(state, good_steps=0)


@mutant("test_state_is_as_found")
class AutocastLeaksAfterAnException(ToyPrecision):
    @contextmanager
    def autocast(self, enabled, policy):
        # Held, or dropping the last reference would close it and mend the leak.
        self.leaked = region = super().autocast(enabled, policy)
        region.__enter__()
        yield
        region.__exit__(None, None, None)


@mutant("test_regions_nest")
class LeavingARegionEndsTheOuterOne(ToyPrecision):
    @contextmanager
    def autocast(self, enabled, policy):
        with super().autocast(enabled, policy):
            yield
        toy.state.autocast = None


@mutant("test_another_threads_region_is_not_ours")
class AutocastReachesOtherThreads(ToyPrecision):
    @contextmanager
    def autocast(self, enabled, policy):
        with super().autocast(enabled, policy):
            before, toy.State.autocast = toy.State.autocast, self._dtype(enabled, policy)
            try:
                yield
            finally:
                toy.State.autocast = before


@mutant("test_clip_grad_norm_sees_true_gradients")
class UnscalesTwice(ToyTraining):
    def step(self, optimizer, update_scale):
        if self.checked.get(id(optimizer)) is False:
            for grad in self._grads(optimizer).values():
                grad /= np.float32(self.state.scale)
        return super().step(optimizer, update_scale)


@mutant("test_clip_grad_norm_sees_true_gradients")
class ClipsScaledGradients(ToyTraining):
    def clip_grad_norm(self, optimizer, max_norm):
        return super().clip_grad_norm(optimizer, max_norm / self.state.scale)


@mutant("test_hysteresis")
class BacksOffAtOnce(ToyTraining):
    def __init__(self, spec):
        super().__init__(spec)
        if hasattr(spec.loss_scale, "initial_scale"):
            spec.loss_scale = replace(spec.loss_scale, hysteresis=1)


@mutant("test_hysteresis_until_the_scale_grows")
class GrowthLeavesTheHysteresis(ToyTraining):
    def update_scale(self):
        before = self.state.hysteresis_steps
        super().update_scale()
        if self.spec.loss_scale.keeps_hysteresis and not self.state.hysteresis_steps:
            self.state = replace(self.state, hysteresis_steps=before)


@mutant("test_golden_vector_saved_and_loaded_between_windows")
class ForgetsTheHysteresisWhenLoaded(ToyTraining):
    def write_state(self, state):
        super().write_state(replace(state, hysteresis_steps=0))


@mutant("test_a_skip_restarts_the_growth_count")
class GoodStepsSurviveASkip(ToyTraining):
    def update_scale(self):
        before, overflow = self.state, any(self.found.values())
        super().update_scale()
        if overflow:
            self.state = replace(self.state, good_steps=before.good_steps)


@mutant("test_a_bad_micro_batch_discards_its_window")
class DropsOnlyTheBadMicroBatch(ToyTraining):
    @contextmanager
    def scale_loss(self, loss, optimizers):
        before = {id(p): p.grad for o in optimizers for p in o.parameters.values()}
        with super().scale_loss(loss, optimizers) as scaled:
            yield scaled
        if self.spec.accumulate_steps > 1 and not np.isfinite(loss.data):
            for optimizer in optimizers:
                for p in optimizer.parameters.values():
                    p.grad = before[id(p)] if before[id(p)] is not None else np.zeros_like(p.data)


@mutant("test_accumulated_micro_batches_are_one_batch")
class SumsItsWindow(ToyTraining):
    @contextmanager
    def scale_loss(self, loss, optimizers):
        with super().scale_loss(loss, optimizers) as scaled:
            yield Scaled(toy.mul(scaled.value, toy.constant(self.spec.accumulate_steps)), self, optimizers)


@mutant("test_two_losses_of_one_optimizer_add_up")
class TheSecondLossReplacesTheFirst(ToyTraining):
    @contextmanager
    def scale_loss(self, loss, optimizers):
        if self.spec.accumulate_steps == 1:
            for optimizer in optimizers:
                self.zero_grad(optimizer)
        with super().scale_loss(loss, optimizers) as scaled:
            yield scaled


@mutant("test_each_skips_by_itself_and_the_scale_is_updated_once")
class TheScaleMovesWithEachOptimizer(ToyTraining):
    def step(self, optimizer, update_scale):
        return super().step(optimizer, True)


@mutant("test_each_skips_by_itself_and_the_scale_is_updated_once")
class OneOverflowSkipsTheOthers(ToyTraining):
    def _decide(self, optimizer):
        return super()._decide(optimizer) or any(self.found.values())


@mutant("test_an_optimizer_without_gradients_is_left_alone")
class NoGradientsMoveTheCount(ToyTraining):
    def step(self, optimizer, update_scale):
        if not self._grads(optimizer):
            self.found[id(optimizer)] = False
            self.state = replace(self.state, good_steps=self.state.good_steps + 1)
        return super().step(optimizer, update_scale)


@mutant("test_the_loss_is_scaled_in_float32")
class ScalesTheLossInFloat16(ToyTraining):
    @contextmanager
    def scale_loss(self, loss, optimizers):
        with super().scale_loss(toy.cast(loss, "float16"), optimizers) as scaled:
            yield Scaled(toy.cast(scaled.value, "float16"), self, optimizers)


@mutant("test_canonical_trace")
class LooksForInfAlone(ToyTraining):
    def unscale(self, optimizer):
        super().unscale(optimizer)
        self.checked[id(optimizer)] = any(np.isinf(grad).any() for grad in self._grads(optimizer).values())


@mutant("test_step_result_tells_what_happened_also_later")
class TheResultSaysAlwaysApplied(ToyTraining):
    def step(self, optimizer, update_scale):
        told = super().step(optimizer, update_scale)
        return StepResult.of(True, False, result.APPLIED, told.scale, told.next_scale)


@mutant("test_exhaustion_names_tensors_and_the_loss")
class NamesNoTensor(ToyTraining):
    def nonfinite_report(self):
        return NonFiniteReport()


@mutant("test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceTrains(ToyPrecision):
    @contextmanager
    def inference(self, models):
        with super().inference(()):
            yield


@mutant("test_mixed_rounds_to_bfloat16_and_answers_float32")
class AnswersInTheComputeDtype(ToyTraining):
    def prepare(self, models, optimizers):
        prepared = super().prepare(models, optimizers)
        for model in models:
            model.output_dtype = None
        return prepared


@mutant("test_a_layer_kept_in_float32")
class IgnoresLayerOverrides(ToyTraining):
    def prepare(self, models, optimizers):
        prepared = super().prepare(models, optimizers)
        for model in models:
            model.layer_dtypes = {}
        return prepared


@mutant("test_discard_step_drops_the_window")
class DiscardedStepBacksOff(ToyTraining):
    def zero_grad(self, optimizer):
        if self.checked.get(id(optimizer)) and not self.found:
            self.found[id(optimizer)] = True
        super().zero_grad(optimizer)


@mutant("test_static_scale_skips_and_never_changes")
class StaticScaleAppliesAnything(ToyTraining):
    def _decide(self, optimizer):
        found = super()._decide(optimizer)
        return found and self.spec.loss_scale.kind != "static"


@mutant("test_an_interrupted_call_leaves_no_gradient")
class RollbackKeepsTheGradients(ToyTraining):
    def rollback(self, optimizers):
        return False


@mutant("test_what_an_interrupted_call_found_is_forgotten")
class RollbackKeepsWhatWasFound(ToyTraining):
    def rollback(self, optimizers):
        found = any(self.checked.values())
        partly = super().rollback(optimizers)
        if found:
            self.found[0] = True
        return partly


@mutant("test_a_partly_applied_update_is_refused_until_it_is_discarded")
class PartlyAppliedUpdatesGoUnnoticed(ToyTraining):
    def rollback(self, optimizers):
        super().rollback(optimizers)
        return False


@mutant("test_an_interrupted_backward_of_one_loss_spares_other_optimizers")
class RollbackTakesEveryOptimizersGradients(ToyTraining):
    def rollback(self, optimizers):
        for model in self.models:
            for param in model.parameters.values():
                param.grad = None
        return super().rollback(optimizers)
