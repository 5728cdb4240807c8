"""The torch backend: what ``unifiedamp.backend.Backend`` asks for, in torch's own means."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from unifiedamp.backend import (
    Capabilities,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    result,
)

from . import explain as plan
from .device import arrays, devices, placement
from .distributed import wrappers
from .optional import TorchExtras
from .precision import casts, custom_functions, float8_layers, layers, recomputation
from .precision.autocast import Inference
from .precision.regions import Regions
from .training import gradients
from .training import prepare as binding
from .training.scaled_loss import Handle, checked_loss
from .training.scaled_steps import ScaledSteps
from .training.scaler import Scaler, leave_kernel


class TorchBackend(TorchExtras):
    """One session on torch.

    ``backend_options``: ``cache_enabled`` (default true) keeps autocast's casts of parameters within a region;
    ``emulate`` (default false) runs the numerics of float8 on any device; ``scale_on_device`` (default false) keeps the
    loss scale as device scalars on a CPU too, as on a GPU, which is there to test that path; ``scope_device`` (default
    true) makes ``amp.scope()`` create tensors on the session's device, while false leaves them where torch creates
    them, and ``amp.prepare`` moves the models.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, spec: SessionSpec) -> None:
        plan.check_options(spec)
        super().__init__(spec)
        self._emulate = spec.options.get("emulate", False)
        self.looking_is_free = devices.looking_is_free(self.device) and not spec.options.get("scale_on_device", False)
        plan.check_policy(spec, self.device)
        self._regions = Regions(spec, self.device, self._tuned.switches)
        self._names = binding.Names()
        self._float8: list[dict[str, str]] = []
        self._undo: list[Callable[[], None]] = []
        self.replays_traces = self.device.type == "cuda"
        if spec.loss_scale.enabled:
            scaler = Scaler(self.device, spec.loss_scale, self.looking_is_free)
            self._steps = ScaledSteps(scaler, self.looking_is_free, self._look_into)

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device_name: str | None) -> tuple[str, str]:
        """See ``Backend``."""
        return devices.default_policy(device_name)

    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        return plan.capabilities(self.device, self._emulate)

    def explain(self) -> list[PlanRow]:
        """See ``Backend``."""
        shared = wrappers.why_spread(self._models)
        rows = plan.rows(self.spec, self.device, self._regions.cache, self._optimizers, shared)
        if self.spec.policy.compute_dtype == "float8":
            rows += float8_layers.rows(self._float8, self._emulate)
        return rows

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend``."""
        return placement.creation_scope(self.device, self.spec.options.get("scope_device", True))

    def is_model(self, obj: Any) -> bool:
        """See ``Backend``."""
        return isinstance(obj, torch.nn.Module)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend``; returns the same objects."""
        new = [model for model in models if not any(model is known for known in self._models)]
        policy = self.spec.policy
        binding.check_models(new)
        binding.check_optimizers(optimizers)
        binding.check_dtypes(new, policy, self.spec.loss_scale.enabled, self.spec.master_weights)
        names = self._names.with_models(new)
        binding.check_owned(optimizers, names, self._masters.low)
        dtypes = [layers.layer_dtypes(model, policy, self.device.type) for model in new]
        for model, chosen in zip(new, dtypes, strict=True):
            layers.check_sharded(model, chosen, policy)
        again = [recomputation.choose(model, self.spec.tuning.checkpoint_layers) for model in new]
        self._names = names
        moved = [placement.move(model, self.device) for model in new]
        for model, chosen, checkpointed in zip(new, dtypes, again, strict=True):
            moved.append(self._attach(model, chosen, checkpointed))
        if self.spec.compile_mode == "max" or self.spec.tuning.channels_last:
            moved += [self._to_channels_last(model) for model in new]
            self._undo += [each.register_load_state_dict_post_hook(placement.align).remove for each in optimizers]
        self._masters.align()
        self._masters.enter(optimizers)
        self._models += new
        fresh = [each for each in optimizers if not any(each is known for known in self._optimizers)]
        self._optimizers += fresh
        self._undo += self._native.watch(fresh)
        if any(moved):
            for optimizer in self._optimizers:
                placement.follow(optimizer)
        self._undo += self._tuned.fuse(optimizers)
        return list(models), list(optimizers)

    def _to_channels_last(self, model: torch.nn.Module) -> bool:
        if not wrappers.is_spread(model):
            return placement.to_channels_last(model)
        if self.spec.tuning.channels_last and placement.has_images(model):
            self.spec.warn(
                f"tuning.channels_last has no effect on {type(model).__name__}: torch.distributed keeps its gradients "
                "in the layout that it found; call model.to(memory_format=torch.channels_last) before wrapping it",
                errors.TuningWarning,
            )
        return False

    def _attach(self, model: torch.nn.Module, dtypes: dict[str, str], checkpointed: dict[str, torch.nn.Module]) -> bool:
        policy = self.spec.policy
        changed = False
        if policy.param_dtype != "float32":
            before = {param: param.data for param in model.parameters()}
            changed = layers.cast_parameters(model, dtypes, policy)
            if self.spec.master_weights:
                self._masters.take(before)
            cast = casts.InputCast(casts.DTYPES[policy.param_dtype])
            self._undo.append(model.register_forward_pre_hook(cast, with_kwargs=True).remove)
        self._undo += layers.wrap_layers(model, dtypes, policy, self.device.type, self._regions.cache)
        if policy.compute_dtype == "float8":
            self._attach_float8(model, dtypes)
        self._undo += [recomputation.Checkpointed(module).remove for module in checkpointed.values()]
        self._tuned.note(model, list(checkpointed))
        cast_output = casts.OutputCast(casts.DTYPES[policy.output_dtype])
        self._undo.append(model.register_forward_hook(cast_output).remove)
        return changed

    def _attach_float8(self, model: torch.nn.Module, dtypes: dict[str, str]) -> None:
        chosen = float8_layers.choose(model, dtypes)
        plan.check_chosen(self.spec, model, chosen)
        self._float8.append(chosen)
        self._undo += float8_layers.wrap(model, chosen, self.device.type, self._emulate)

    def close(self) -> None:
        """See ``Backend``: hooks, layer regions, op kernels and master weights go."""
        self._native.close()
        self._masters.leave(self._optimizers)
        while self._undo:
            self._undo.pop()()
        self._regions.close()

    # -- one step ------------------------------------------------------------------------------------------------

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return self._regions.get(enabled, policy)

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return Inference(self._regions.uncached(), models)

    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> AbstractContextManager[Handle]:
        """See ``Backend``."""
        value = checked_loss(loss)
        self._masters.enter(optimizers)
        first = self._native.begin(loss, optimizers)
        if self._notes is not None:
            self._loss = value.detach()
        if self.spec.loss_scale.enabled:
            self._loss = value.detach()
            value = self._steps.scaled(value)
        if self.spec.accumulate_steps > 1:
            value = value / self.spec.accumulate_steps
        # Other optimizers' parameters may lie on the way back (a generator's loss goes through the discriminator).
        inputs = None
        if len(optimizers) < len(self._optimizers):
            of_model = [self._masters.low(p) for each in optimizers for p in gradients.parameters(each)]
            inputs = [param for param in of_model if param.requires_grad]
        after = functools.partial(self._carry, optimizers)
        overrides, switches = self.spec.policy.op_overrides, self._tuned.switches
        return Handle(value, optimizers, inputs, overrides, after, switches, self._native, first, loss, self._mark)

    def _carry(self, optimizers: Sequence[Any]) -> None:
        for optimizer in optimizers:
            self._masters.carry(optimizer)

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        """See ``Backend``."""
        self._mark.set_with_regions()
        loss = super().backward(closure, optimizers)
        self._mark.leave_regions()
        return loss

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._mark.set()
        self._masters.carry(optimizer)
        self._native.check(optimizer, "unscale")
        self._steps.unscale(optimizer)

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend``."""
        self._mark.set()
        return gradients.clip_norm(optimizer, max_norm, self.looking_is_free)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend``."""
        self._mark.set()
        gradients.clip_value(optimizer, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend``."""
        self._masters.carry(optimizer)
        return {self._name(p): p.grad for p in gradients.parameters(optimizer) if p.grad is not None}

    def _name(self, param: torch.Tensor) -> str:
        return self._names.of(self._masters.low(param))

    def step(self, optimizer: Any, update: bool) -> StepResult:
        """See ``Backend``."""
        self._mark.set()
        masters = self._masters
        masters.enter([optimizer])
        masters.carry(optimizer)
        self._native.check(optimizer, "step")
        masters.begin_update(optimizer)
        outcome = self._steps.step(optimizer, update)
        masters.republish()
        # Casts of the weights as they were are left there by a region around the step, or one that a signal kept open.
        torch.clear_autocast_cache()
        self._mark.leave_regions()
        self._native.end(optimizer)
        if outcome is None:
            return self._no_gradients(optimizer)
        return outcome

    def _no_gradients(self, optimizer: Any) -> StepResult:
        names = [self._name(param) for param in gradients.parameters(optimizer)]
        self.spec.warn(
            f"amp.step({type(optimizer).__name__}): none of its {len(names)} parameters received a gradient "
            f"({errors.first_names(names)}); nothing was applied and the loss scale stays. Is the loss computed from "
            "another model, or are the parameters frozen?",
            errors.StepWarning,
        )
        scale = self._steps.mark()
        return StepResult(lambda: result.StepValues(False, False, result.NO_GRADIENTS, float(scale), float(scale)))

    def update(self) -> None:
        """See ``Backend``."""
        self._steps.update()

    def drop_gradients(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._steps.forget_update()
        self._drop(optimizer)

    def _drop(self, optimizer: Any) -> None:
        self._masters.drop(optimizer)
        self._steps.drop(optimizer)
        self._native.end(optimizer)

    def rollback(self, optimizers: Sequence[Any]) -> bool:
        """See ``Backend``."""
        self._mark.put_back()
        self._native.rollback()
        if self._steps.capturing:
            return False  # nothing was computed, and the capture restores what Python held
        for optimizer in optimizers:
            self._drop(optimizer)
            leave_kernel(optimizer)
        self._masters.republish()
        self._steps.settle()
        return self._steps.partly_updated(optimizers)

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend``."""
        return self._steps.read()

    def peek_state(self) -> ScaleState | None:
        """See ``Backend``."""
        return self._steps.peek()

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend``."""
        self._steps.forget_update()
        self._steps.write(state)

    # -- tools ---------------------------------------------------------------------------------------------------

    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        """See ``Backend``."""
        return arrays.to_native(array, self.device, dtype)

    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend``."""
        return arrays.to_numpy(tensor)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend``."""
        return custom_functions.wrap_custom(target, cast_inputs)
