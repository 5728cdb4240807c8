"""Mutants of what is done to gradients: checked, unscaled, clipped, emptied, sent to the right optimizer."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
from toy import autograd as toy
from toy.training import Scaled, ToyTraining

from .registry import mutant


@mutant("test_any_gradient_alone_skips_the_step")
class ChecksTheFirstGradientOnly(ToyTraining):
    def unscale(self, optimizer):
        first = next(iter(self._grads(optimizer).values()))
        finite = bool(np.isfinite(first).all())
        super().unscale(optimizer)
        self.checked[id(optimizer)] = not finite


@mutant("test_one_gradient_among_hundreds")
class ChecksAHundredGradients(ToyTraining):
    def unscale(self, optimizer):
        seen = list(self._grads(optimizer).values())[:100]
        finite = all(np.isfinite(grad).all() for grad in seen)
        super().unscale(optimizer)
        self.checked[id(optimizer)] = not finite


@mutant("test_every_gradient_is_clamped")
class ClampsTheFirstGradientOnly(ToyTraining):
    def clip_grad_value(self, optimizer, clip_value):
        others = list(self._grads(optimizer).items())[1:]
        super().clip_grad_value(optimizer, clip_value)
        for name, grad in others:
            optimizer.parameters[name].grad = grad


@mutant("test_every_gradient_is_clamped")
class ClampsFromAboveOnly(ToyTraining):
    def clip_grad_value(self, optimizer, clip_value):
        for name, grad in self._grads(optimizer).items():
            optimizer.parameters[name].grad = np.minimum(grad, clip_value)


@mutant("test_the_norm_is_that_of_all_gradients")
class ClipsEachGradientByItself(ToyTraining):
    def clip_grad_norm(self, optimizer, max_norm):
        for name, grad in self._grads(optimizer).items():
            norm = float(np.sqrt((grad.astype(np.float64) ** 2).sum()))
            optimizer.parameters[name].grad = grad * np.float32(min(1.0, max_norm / (norm + 1e-12)))
        return toy.Tensor(np.float32(norm))


@mutant("test_a_norm_whose_squares_overflow")
class SquaresInFloat32(ToyTraining):
    def clip_grad_norm(self, optimizer, max_norm):
        with np.errstate(all="ignore"):
            norm = np.sqrt(np.float32(sum((g**2).sum() for g in self._grads(optimizer).values())))
            for name, grad in self._grads(optimizer).items():
                optimizer.parameters[name].grad = grad * np.float32(min(1.0, max_norm / (norm + 1e-12)))
        return toy.Tensor(norm)


@mutant("test_what_is_small_enough_stays")
class ClippingAlsoEnlarges(ToyTraining):
    def clip_grad_norm(self, optimizer, max_norm):
        norm = super().clip_grad_norm(optimizer, 1e30)
        for name, grad in self._grads(optimizer).items():
            optimizer.parameters[name].grad = grad * np.float32(max_norm / (float(norm.data) + 1e-12))
        return norm


@mutant("test_a_sum_that_overflows_is_no_overflow")
class LooksAtTheSum(ToyTraining):
    def unscale(self, optimizer):
        with np.errstate(all="ignore"):
            total = np.float32(0)
            for grad in self._grads(optimizer).values():
                total = total + grad.sum()
        super().unscale(optimizer)
        self.checked[id(optimizer)] = not np.isfinite(total)


@mutant("test_a_clip_after_a_discarded_one")
class ADiscardedStepStaysUnscaled(ToyTraining):
    stale = False

    def zero_grad(self, optimizer):
        self.stale = bool(self.checked)
        super().zero_grad(optimizer)

    def step(self, optimizer, update_scale):
        outcome = super().step(optimizer, update_scale)
        self.stale = False
        return outcome

    def unscale(self, optimizer):
        before = self._grads(optimizer)
        super().unscale(optimizer)
        if self.stale:
            for name, grad in before.items():
                optimizer.parameters[name].grad = grad


@mutant("test_a_last_window_that_is_short_is_discarded")
class DiscardingKeepsGradients(ToyTraining):
    def zero_grad(self, optimizer):
        if optimizer.steps and not self.found:
            kept = self._grads(optimizer) if self.spec.accumulate_steps > 1 else {}
            super().zero_grad(optimizer)
            for name, grad in kept.items():
                optimizer.parameters[name].grad = grad
        else:
            super().zero_grad(optimizer)


@mutant("test_an_optimizer_that_was_not_named_gets_nothing")
class GradientsLeak(ToyTraining):
    def others(self, named):
        return []


@mutant("test_what_was_there_before_stays")
class GradientsOfOthersAreDropped(ToyTraining):
    def others(self, named):
        return [(parameter, None) for parameter, _ in super().others(named)]


@mutant("test_gradients_have_the_names_of_parameters")
class NamesAreShifted(ToyTraining):
    def gradients(self, optimizer):
        found = super().gradients(optimizer)
        return dict(zip(found, reversed(list(found.values())), strict=True))


@mutant("test_the_mean_of_the_window_is_applied")
class DividesOnlyWhatItScales(ToyTraining):
    @contextmanager
    def scale_loss(self, loss, optimizers):
        with super().scale_loss(loss, optimizers) as scaled:
            factor = 1 if self.spec.loss_scale.enabled else self.spec.accumulate_steps
            yield Scaled(toy.mul(scaled.value, toy.constant(factor)), self, optimizers)


@mutant("test_momentum_rests")
class SkippedStepsKeepTheirMomentum(ToyTraining):
    def step(self, optimizer, update_scale):
        outcome = super().step(optimizer, update_scale)
        if outcome.found_inf and optimizer.momentum:
            optimizer.apply({name: np.zeros_like(p.data) for name, p in optimizer.parameters.items()})
        return outcome
