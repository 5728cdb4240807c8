"""The toy backend: every rule of the layer in a few lines each, over :mod:`toy.autograd`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from unifiedamp.backend import (
    FEATURES,
    PRESETS,
    Capabilities,
    LegacyBackend,
    NonFiniteReport,
    PlanRow,
    StepResult,
    Support,
    errors,
    match_layers,
    result,
)

from . import autograd as toy


class Scaled:
    """The scaled loss."""

    def __init__(self, value, backend, optimizers):
        self.value, self._backend, self._optimizers = value, backend, optimizers

    def backward(self):
        kept = self._backend.others(self._optimizers)
        self.value.backward()
        for parameter, grad in kept:
            parameter.grad = grad
        for optimizer in self._optimizers:
            self._backend.checked.pop(id(optimizer), None)


NO_FLOAT8 = "no linear layer has three products to run in float8"


class ToyBackend(LegacyBackend):
    """One session over the toy framework."""

    name = "toy"

    def __init__(self, spec):
        super().__init__(spec)
        spec.check_options([], self.name)
        if spec.policy.compute_dtype == "float8":
            raise errors.PolicyNotSupportedError(f"toy: {NO_FLOAT8} ('{spec.policy}'); nearest: 'mixed_bfloat16'")
        if spec.policy.op_overrides:
            raise errors.UnsupportedError(f"toy has no op_overrides ({', '.join(spec.policy.op_overrides)})")
        self.state = spec.loss_scale.initial_state()
        self.found: dict[int, bool] = {}  # by optimizer
        self.updating = False
        self.checked: dict[int, bool] = {}
        self.report = NonFiniteReport()
        self.loss_was_finite: bool | None = None
        self.models: list[toy.Model] = []
        self.optimizers: list[toy.Sgd] = []
        self.pending: set[int] = set()  # optimizers that a scaled loss waits for
        self.inferring = False

    # -- facts

    @classmethod
    def default_policy(cls, device):
        return "float32", "numpy has no 16-bit arithmetic"

    def capabilities(self):
        missing = {
            "compile": "numpy has nothing to compile with",
            "op_overrides": "no list of operations",
            "float8": NO_FLOAT8,
            "master_weights": "a toy has no 16-bit weights",
            "float32_weights": "a toy has no checkpoints",
            "convert_model": "a toy is not deployed",
            "recording": "a toy is looked at by hand",
            "shape_advice": "numpy has no Tensor Cores",
            "kernel_profile": "numpy has no kernels",
        }
        features = {name: Support(name not in missing, missing.get(name, "")) for name in FEATURES}
        policies = {name: Support(True, "emulated by rounding") for name in PRESETS}
        policies["mixed_float8"] = Support(False, NO_FLOAT8)
        return Capabilities("cpu", policies, features)

    def explain(self):
        return [PlanRow("autocast", self.spec.policy.compute_dtype, "toy.autograd.state.autocast", "emulated")]

    # -- setting up

    @contextmanager
    def scope(self):
        yield

    def is_model(self, obj):
        return isinstance(obj, toy.Model)

    def prepare(self, models, optimizers):
        policy = self.spec.policy
        for optimizer in optimizers:
            self._check_optimizer(optimizer, [*self.models, *models])
        for model in models:
            bad = [name for name, p in model.parameters.items() if p.dtype != "float32"]
            if bad and self.spec.loss_scale.enabled:
                raise errors.ParamDtypeError(f"parameters {errors.first_names(bad)} are 16-bit under a loss scaler")
            model.layer_dtypes = match_layers(policy.layer_overrides, model.layers)
            model.output_dtype = policy.output_dtype
        self.models += models
        for optimizer in optimizers:
            optimizer.hooks = [self._before_step]
        self.optimizers += optimizers
        return list(models), list(optimizers)

    def _check_optimizer(self, optimizer, models):
        if not isinstance(optimizer, toy.Sgd):
            raise errors.WrongObjectError(f"expected a toy optimizer, got {type(optimizer).__name__}")
        known = {id(p) for model in models for p in model.parameters.values()}
        strange = [name for name, p in optimizer.parameters.items() if id(p) not in known]
        if strange:
            raise errors.PrepareError(f"the optimizer trains {errors.first_names(strange)}, of no prepared model")

    def close(self):
        self.pending.clear()
        for optimizer in self.optimizers:
            optimizer.hooks = []
        for model in self.models:
            model.layer_dtypes, model.output_dtype = {}, None

    # -- one step

    def _dtype(self, enabled, policy):
        policy = policy or self.spec.policy
        return policy.compute_dtype if enabled and policy.compute_dtype != "float32" else None

    @contextmanager
    def autocast(self, enabled, policy):
        before = (toy.state.autocast, toy.state.recording)
        toy.state.autocast, toy.state.recording = self._dtype(enabled, policy), not self.inferring
        modes = [model.training for model in self.models]
        for model in self.models:
            model.training = model.training if self.inferring else True
        try:
            yield
        finally:
            toy.state.autocast, toy.state.recording = before
            for model, mode in zip(self.models, modes, strict=True):
                model.training = mode

    @contextmanager
    def inference(self, models):
        with self.autocast(True, None):
            toy.state.recording, self.inferring, before = False, True, self.inferring
            for model in models:
                model.training = False
            try:
                yield
            finally:
                self.inferring = before

    @contextmanager
    def scale_loss(self, loss, optimizers):
        if loss.data.ndim:
            raise errors.LossError(f"the loss must be a scalar, got shape {loss.shape}")
        if not loss.inputs:
            raise errors.LossError("the loss depends on nothing that was recorded")
        self.loss_was_finite = bool(np.isfinite(loss.data))
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
        return {name: p.grad for name, p in optimizer.parameters.items() if p.grad is not None}

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

    def step(self, optimizer, update):
        scale = self.state.scale
        grads = self._grads(optimizer)
        if not grads:
            names = errors.first_names(optimizer.parameters)
            self.spec.warn(f"no parameter of the optimizer has a gradient ({names})", errors.StepWarning)
            self._end(update)
            return StepResult.of(False, False, result.NO_GRADIENTS, scale, self.state.scale)
        found = self._decide(optimizer)
        self.found[id(optimizer)] = found
        self._count(found)
        if not found:
            self.updating = True
            optimizer.apply(self._grads(optimizer))
            self.updating = False
        self.drop_gradients(optimizer)
        self._end(update)
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

    def _end(self, update):
        if update:
            self.update()

    def update(self):
        if self.found:
            self.state = self.spec.loss_scale.next_state(self.state, any(self.found.values()))
        self.found = {}

    def drop_gradients(self, optimizer):
        self.pending.discard(id(optimizer))
        self.checked.pop(id(optimizer), None)
        for p in optimizer.parameters.values():
            p.grad = None

    def rollback(self, optimizers):
        partly, self.updating = self.updating, False
        for optimizer in optimizers:
            self.drop_gradients(optimizer)
            self.found.pop(id(optimizer), None)
        return partly

    # -- state and tools

    def read_state(self):
        return self.state

    def write_state(self, state):
        self.state = state

    def non_finite_report(self):
        return self.report

    def compile(self, fn, window, mode):
        raise errors.UnsupportedError("toy has nothing to compile with")

    def to_native(self, array, dtype=None):
        if dtype == "float64":
            raise errors.UnsupportedError("toy tensors have 32 bits at most")
        if isinstance(array, toy.Tensor):
            return array if dtype in (None, array.dtype) else toy.Tensor(array.data, dtype)
        plain = np.from_dlpack(array) if _dlpack_alone(array) else np.asarray(array)
        if dtype is not None:
            return toy.Tensor(plain.astype(np.float32), dtype)
        return toy.Tensor(plain, "float16" if plain.dtype == np.float16 else "float32")

    def to_numpy(self, tensor):
        return np.asarray(tensor.data if isinstance(tensor, toy.Tensor) else tensor)

    @classmethod
    def custom_function(cls, target, cast_inputs):
        def call(*args):
            before, dtype = toy.state.autocast, cast_inputs
            if before is None or dtype is None:
                return target(*args)
            toy.state.autocast = None
            try:
                return target(*[toy.cast(a, dtype) if isinstance(a, toy.Tensor) else a for a in args])
            finally:
                toy.state.autocast = before

        return call


def _dlpack_alone(array):
    return hasattr(array, "__dlpack__") and not hasattr(array, "__array__")
