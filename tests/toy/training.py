"""The toy's training calls: every rule of the layer in a few lines each, over :mod:`toy.autograd`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from unifiedamp.backend import (
    NonFiniteReport,
    StepResult,
    Training,
    backward_in_context,
    errors,
    match_layers,
    result,
)

from . import autograd as toy
from .ema import ToyAverage


class Scaled:
    """The scaled loss."""

    def __init__(self, value, training, optimizers):
        self.value, self._training, self._optimizers = value, training, optimizers

    def backward(self, retain_graph=False):
        kept = self._training.others(self._optimizers)
        self.value.backward()
        for parameter, grad in kept:
            parameter.grad = grad
        for optimizer in self._optimizers:
            self._training.checked.pop(id(optimizer), None)


class ToyTraining(Training):
    """The calls of a step; ``models`` and ``optimizers`` are the lists of prepared ones."""

    def __init__(self, spec, precision, models, optimizers):
        self.spec, self.precision = spec, precision
        self.models, self.optimizers = models, optimizers
        self.state = spec.loss_scale.initial_state()
        self.averages: list[ToyAverage] = []
        self.found: dict[int, bool] = {}  # by optimizer
        self.updating = False
        self.checked: dict[int, bool] = {}
        self.report = NonFiniteReport()
        self.loss_was_finite: bool | None = None
        self.pending: set[int] = set()  # optimizers that a scaled loss waits for
        self.dropping: set[int] = set()  # optimizers whose next step a condition drops

    def is_model(self, obj):
        return isinstance(obj, toy.Model)

    def prepare(self, models, optimizers):
        policy = self.spec.policy
        for optimizer in optimizers:
            self._check_optimizer(optimizer, [*self.models, *models], [*self.optimizers, *optimizers])
        for model in models:
            bad = [name for name, p in model.parameters.items() if p.dtype != "float32"]
            if bad and self.spec.loss_scale.enabled:
                raise errors.ParamDtypeError(f"parameters {errors.first_names(bad)} are 16-bit under a loss scaler")
            for later in self.spec.policies:  # so that no switch fails in the middle of a run
                match_layers(later.layer_overrides, model.layers)
            model.layer_dtypes = match_layers(policy.layer_overrides, model.layers)
            model.output_dtype = policy.output_dtype
        self.models += models
        for optimizer in optimizers:
            optimizer.hooks = [self._before_step]
        self.optimizers += optimizers
        return list(models), list(optimizers)

    def _check_optimizer(self, optimizer, models, optimizers):
        if not isinstance(optimizer, toy.Sgd):
            raise errors.WrongObjectError(f"expected a toy optimizer, got {type(optimizer).__name__}")
        known = {id(p) for model in models for p in model.parameters.values()}
        strange = [name for name, p in optimizer.parameters.items() if id(p) not in known]
        if strange:
            raise errors.PrepareError(f"the optimizer trains {errors.first_names(strange)}, of no prepared model")
        taken = {id(p) for other in optimizers if other is not optimizer for p in other.parameters.values()}
        shared = [name for name, p in optimizer.parameters.items() if id(p) in taken]
        if shared:
            raise errors.PrepareError(f"another optimizer of this session trains {errors.first_names(shared)}")

    # -- one step

    @contextmanager
    def scale_loss(self, loss, optimizers):
        if not isinstance(loss, toy.Tensor):
            raise errors.LossError(f"the loss must be a tensor, got {type(loss).__name__}")
        if loss.data.ndim:
            raise errors.LossError(f"the loss must be a scalar, got shape {loss.shape}")
        if not loss.inputs:
            raise errors.LossError("the loss depends on nothing that was recorded")
        earlier = self.loss_was_finite is not False if self.pending else True
        self.loss_was_finite = bool(np.isfinite(loss.data)) and earlier
        before, toy.state.recording = toy.state.recording, True
        factor = np.float32(self.state.scale / self.spec.accumulate_steps)
        if not self.pending and any(self._grads(optimizer) for optimizer in optimizers):
            raise errors.StepOrderError("amp.scale_loss: there are gradients of a loss that was not scaled")
        self.pending |= {id(optimizer) for optimizer in optimizers}
        try:
            scaled = toy.mul(toy.cast(loss, "float32"), toy.Tensor(factor))
            loss.hook = lambda nodes: self._on_loss(scaled in nodes)
            yield Scaled(scaled, self, optimizers)
        finally:
            toy.state.recording = before

    def _on_loss(self, through_scaled):
        if self.pending and not through_scaled:
            raise errors.StepOrderError("loss.backward() would add unscaled gradients: scaled_loss.backward()")

    def _before_step(self, optimizer):
        if id(optimizer) in self.pending:
            raise errors.StepOrderError("optimizer.step() would apply scaled gradients: call amp.step(optimizer)")

    def others(self, named):
        """Return the parameters of optimizers that a loss does not name, and their gradients."""
        ids = {id(p) for each in named for p in each.parameters.values()}
        all_of_them = [p for each in self.optimizers for p in each.parameters.values()]
        return [(p, p.grad) for p in all_of_them if id(p) not in ids]

    def _grads(self, optimizer):
        return {name: p.grad for name, p in optimizer.parameters.items() if p.grad is not None and not p.frozen}

    def backward(self, closure, optimizers):
        return backward_in_context(self.precision, self, closure, optimizers)

    def unscale(self, optimizer):
        grads = self._grads(optimizer)
        with np.errstate(all="ignore"):
            bad = [name for name, grad in grads.items() if not np.isfinite(grad).all()]
            self.checked[id(optimizer)] = self._found(bad)
            for name, grad in grads.items():
                optimizer.parameters[name].grad = grad / np.float32(self.state.scale)

    def _found(self, bad):
        if bad:
            self.report = NonFiniteReport(tuple(bad), self.loss_was_finite)
        return bool(bad)

    def clip_grad_norm(self, optimizer, max_norm):
        with np.errstate(all="ignore"):
            grads = self._grads(optimizer)
            norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads.values()))
            for name, grad in grads.items():
                optimizer.parameters[name].grad = grad * np.float32(min(1.0, max_norm / (norm + 1e-12)))
        return toy.Tensor(np.float32(norm))

    def clip_grad_value(self, optimizer, clip_value):
        for name, grad in self._grads(optimizer).items():
            optimizer.parameters[name].grad = np.clip(grad, -clip_value, clip_value)

    def gradients(self, optimizer):
        return self._grads(optimizer)

    def step(self, optimizer, update_scale):
        scale = self.state.scale
        grads = self._grads(optimizer)
        if not grads:
            names = errors.first_names(optimizer.parameters)
            self.spec.warn(f"no parameter of the optimizer has a gradient ({names})", errors.StepWarning)
            self.zero_grad(optimizer)
            self._end(update_scale)
            return StepResult.of(False, False, result.NO_GRADIENTS, scale, self.state.scale)
        found = self._decide(optimizer)
        if id(optimizer) in self.dropping and not found:
            self.zero_grad(optimizer)
            self._end(update_scale)
            return StepResult.of(False, False, result.DISCARDED, scale, self.state.scale)
        self.found[id(optimizer)] = found
        self._count(found)
        if not found:
            self.updating = True
            for average in self.averages:
                average.begin(optimizer)
            optimizer.apply(self._grads(optimizer))
            for average in self.averages:
                average.end(optimizer)
            self.updating = False
        self.zero_grad(optimizer)
        self._end(update_scale)
        reason = result.NON_FINITE if found else result.APPLIED
        return StepResult.of(not found, found, reason, scale, self.state.scale)

    def _decide(self, optimizer):
        if not self.spec.loss_scale.enabled:
            return False
        if id(optimizer) not in self.checked:
            self.unscale(optimizer)
        return self.checked[id(optimizer)]

    def _count(self, found):
        key = "skipped_steps" if found else "applied_steps"
        self.state = replace(self.state, **{key: getattr(self.state, key) + 1})

    def _end(self, update_scale):
        if update_scale:
            self.update_scale()

    def update_scale(self):
        if self.found:
            self.state = self.spec.loss_scale.next_state(self.state, any(self.found.values()))
        self.found = {}

    def skip_if(self, condition, optimizers):
        if not isinstance(condition, bool):
            if not isinstance(condition, toy.Tensor) or condition.data.ndim:
                raise errors.WrongObjectError(f"amp.skip_if: the condition must be a scalar, got {condition!r}")
            condition = bool(condition.data)
        if condition:
            self.dropping |= {id(optimizer) for optimizer in optimizers}

    def zero_grad(self, optimizer):
        self.pending.discard(id(optimizer))
        self.dropping.discard(id(optimizer))
        self.checked.pop(id(optimizer), None)
        for p in optimizer.parameters.values():
            p.grad = None

    def rollback(self, optimizers):
        partly, self.updating = self.updating, False
        for optimizer in optimizers:
            self.zero_grad(optimizer)
            self.found.pop(id(optimizer), None)
        return partly

    # -- state

    def read_state(self):
        return self.state

    def write_state(self, state):
        self.state = state

    def nonfinite_report(self):
        return self.report
