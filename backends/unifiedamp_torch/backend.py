"""The torch backend: what ``unifiedamp.backend.Backend`` asks for, in torch's own means."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch

from unifiedamp.backend import (
    Backend,
    Capabilities,
    MatmulShape,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    recording,
    result,
)

from . import (
    arrays,
    binding,
    casts,
    checkpointing,
    convert,
    custom,
    device,
    epsilons,
    float8_layers,
    gradients,
    layers,
    ops,
    placement,
    plan,
    prefetch,
    report,
    shapes,
    tuning,
    usage,
    weights,
)
from .autocast import Inference, Region, entered
from .capture import CapturedStep, Ground
from .compile import compile_step
from .handle import Handle, checked_loss
from .masters import Masters
from .recorder import Notes
from .scaled_steps import ScaledSteps
from .scaler import Scaler, world_size
from .steps import NotYet, PlainSteps
from .update import Updates

_UNCOMPILED = (
    "step", "unscale", "clip_grad_norm", "clip_grad_value", "begin_recording", "note_gradients", "end_recording",
)  # fmt: skip


class TorchBackend(Backend):
    """One session on torch.

    ``backend_options``: ``cache_enabled`` (default true) keeps autocast's casts of parameters within a region;
    ``emulate`` (default false) runs the numerics of float8 on any device.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        plan.check_options(spec)
        self._cache = spec.options.get("cache_enabled", True)
        self._emulate = spec.options.get("emulate", False)
        self.device = device.pick_device(spec.device)
        self.looking_is_free = device.looking_is_free(self.device)
        plan.check_policy(spec, self.device)
        self._release: list[Any] = []
        self._hold_ops(spec.policy)
        self._tuned = tuning.Tuned(spec, self.device)
        self._regions: dict[tuple[bool, Policy | None], Region] = {}
        self._names = binding.Names()
        self._masters = Masters()
        self._models: list[torch.nn.Module] = []
        self._float8: list[dict[str, str]] = []
        self._optimizers: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._report, self._skips = NonFiniteReport(), report.LastSkips()
        self._loss: torch.Tensor | None = None
        self._notes: Notes | None = None
        self._steps: PlainSteps | ScaledSteps = PlainSteps()
        self._ground: Ground | None = None
        self.replays_traces = self.device.type == "cuda"
        if spec.loss_scale.enabled:
            scaler = Scaler(self.device, spec.loss_scale, self.looking_is_free)
            self._steps = ScaledSteps(scaler, self.looking_is_free, self._look_into)

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device_name: str | None) -> tuple[str, str]:
        """See ``Backend``."""
        return device.default_policy(device_name)

    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        return plan.capabilities(self.device, self._emulate)

    def explain(self) -> list[PlanRow]:
        """See ``Backend``."""
        rows = plan.rows(self.spec, self.device, self._cache, self._optimizers)
        if self.spec.policy.compute_dtype == "float8":
            rows += float8_layers.rows(self._float8, self._emulate)
        return rows

    def tuning_rows(self) -> list[PlanRow]:
        """See ``Backend``."""
        return self._tuned.rows()

    def debugging_switches(self) -> dict[str, str]:
        """See ``Backend``."""
        return tuning.debugging_switches()

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The native scaler, for torch's own tools; None without loss scaling."""
        return self._steps.scaler if isinstance(self._steps, ScaledSteps) else None

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend``."""
        return placement.creation_scope(self.device)

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
        again = [checkpointing.choose(model, self.spec.tuning.checkpoint_layers) for model in new]
        self._names = names
        moved = [placement.move(model, self.device) for model in new]
        for model, chosen, checkpointed in zip(new, dtypes, again, strict=True):
            moved.append(self._attach(model, chosen, checkpointed))
        if self.spec.compile_mode == "max" or self.spec.tuning.channels_last:
            moved += [placement.to_channels_last(model) for model in new]
            self._undo += [each.register_load_state_dict_post_hook(placement.align).remove for each in optimizers]
        self._masters.align()
        self._masters.enter(optimizers)
        self._models += new
        self._optimizers += [each for each in optimizers if not any(each is known for known in self._optimizers)]
        if any(moved):
            for optimizer in self._optimizers:
                placement.follow(optimizer)
        self._undo += self._tuned.fuse(optimizers)
        return list(models), list(optimizers)

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
        self._undo += layers.wrap_layers(model, dtypes, policy, self.device.type, self._cache)
        if policy.compute_dtype == "float8":
            self._attach_float8(model, dtypes)
        self._undo += [checkpointing.Checkpointed(module).remove for module in checkpointed.values()]
        self._tuned.note(model, list(checkpointed))
        cast_output = casts.OutputCast(casts.DTYPES[policy.output_dtype])
        self._undo.append(model.register_forward_hook(cast_output).remove)
        return changed

    def _attach_float8(self, model: torch.nn.Module, dtypes: dict[str, str]) -> None:
        chosen = float8_layers.choose(model, dtypes)
        plan.check_chosen(self.spec, model, chosen)
        self._float8.append(chosen)
        self._undo += float8_layers.wrap(model, chosen, self.device.type, self._emulate)

    def _hold_ops(self, policy: Policy) -> None:
        if policy.op_overrides:
            self._release.append(weakref.finalize(self, ops.hold(policy.op_overrides, self.device.type)))

    def close(self) -> None:
        """See ``Backend``: hooks, layer regions, op kernels and master weights go."""
        self._masters.leave(self._optimizers)
        while self._undo:
            self._undo.pop()()
        while self._release:
            self._release.pop()()

    # -- one step ------------------------------------------------------------------------------------------------

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        if policy is not None and entered.in_compiled_step and policy.op_overrides != self.spec.policy.op_overrides:
            raise errors.UnsupportedError(
                "amp.autocast(policy=...) inside a compiled step: op_overrides must be the session's, because "
                "torch.compile traces under them; use layer_overrides, or make a session of that policy"
            )
        return self._regions.get((enabled, policy)) or self._add_region(enabled, policy)

    def _add_region(self, enabled: bool, policy: Policy | None) -> Region:
        if policy is not None and policy != self.spec.policy:
            plan.check_region(self.spec.policy, policy)
            plan.check_policy(replace(self.spec, policy=policy), self.device)
            self._hold_ops(policy)
        region = self._regions[enabled, policy] = self._make_region(enabled, policy or self.spec.policy, self._cache)
        return region

    def _make_region(self, enabled: bool, policy: Policy, cache: bool) -> Region:
        params = self.spec.policy.param_dtype
        if enabled and policy.compute_dtype == "float32" != params:
            raise errors.PolicyNotSupportedError(
                f"amp.autocast(policy={str(policy)!r}): the parameters of this session are {params}, and torch has no "
                f"autocast to float32; use policy 'mixed_{params}' for the session"
            )
        low = enabled and policy.compute_dtype != params
        dtype = casts.DTYPES[policy.region_dtype] if low else None
        return Region(self.device.type, dtype, cache, policy.op_overrides, self._tuned.switches)

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return Inference(self._make_region(True, self.spec.policy, cache=False), models)

    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> AbstractContextManager[Handle]:
        """See ``Backend``."""
        value = checked_loss(loss)
        self._masters.enter(optimizers)
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
        return Handle(value, inputs, self.spec.policy.op_overrides, after, self._tuned.switches)

    def _carry(self, optimizers: Sequence[Any]) -> None:
        for optimizer in optimizers:
            self._masters.carry(optimizer)

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._masters.carry(optimizer)
        self._steps.unscale(optimizer)

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend``."""
        return gradients.clip_norm(optimizer, max_norm)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend``."""
        gradients.clip_value(optimizer, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend``."""
        self._masters.carry(optimizer)
        return {self._name(p): p.grad for p in gradients.parameters(optimizer) if p.grad is not None}

    def _name(self, param: torch.Tensor) -> str:
        return self._names.of(self._masters.low(param))

    def step(self, optimizer: Any, update: bool) -> StepResult:
        """See ``Backend``."""
        masters = self._masters
        masters.enter([optimizer])
        masters.carry(optimizer)
        trained = masters.pending(optimizer)
        outcome = self._steps.step(optimizer, update)
        masters.publish(trained)
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
        self._masters.drop(optimizer)
        self._steps.drop(optimizer)

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend``."""
        return self._steps.read()

    def peek_state(self) -> ScaleState | None:
        """See ``Backend``."""
        return self._steps.peek()

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend``."""
        self._steps.write(state)

    def non_finite_report(self) -> NonFiniteReport:
        """See ``Backend``."""
        return self._skips.report() or self._report

    @property
    def remembers_skips(self) -> bool:  # type: ignore[override]
        """See ``Backend``; a captured step does so on the device, or does not."""
        return self._steps.remembers

    @remembers_skips.setter
    def remembers_skips(self, wanted: bool) -> None:
        self._steps.remembers = wanted and not self.looking_is_free

    def _look_into(self, optimizer: Any, found: torch.Tensor) -> None:
        if self.diagnosing:
            if found.item():
                self._skips.forget()
                self._report = report.non_finite(self.gradients(optimizer), self._loss)
        elif self.remembers_skips:
            noted = (id(optimizer), self.gradients(optimizer), self._loss)
            if self._steps.capturing and not self._skips.ready(*noted):
                raise NotYet  # what a capture allocates is filled anew by each replay
            self._skips.note(*noted, found)

    # -- recording -----------------------------------------------------------------------------------------------

    def begin_recording(self, activations: bool) -> None:
        """See ``Backend``; what is compiled runs uncompiled meanwhile, since a compiled graph holds no hooks."""
        self._notes = Notes(self._models, activations)

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """See ``Backend``."""
        assert self._notes is not None
        scaler = self._steps.scaler if isinstance(self._steps, ScaledSteps) else None
        return self._notes.gradients(self.gradients(optimizer), scaler and scaler.scale_tensor, self._loss)

    def end_recording(self) -> recording.RecordedStep:
        """See ``Backend``."""
        notes, self._notes = self._notes, None
        if notes is None:
            return recording.RecordedStep()
        notes.stop()
        return notes.read(self.device)

    def epsilons(self) -> list[recording.Epsilon]:
        """See ``Backend``."""
        return list(epsilons.epsilons(self._models, self._optimizers, self.spec.policy))

    # -- whole models --------------------------------------------------------------------------------------------

    def read_weights(self, model: Any) -> dict[str, Any]:
        """See ``Backend``."""
        return weights.read(model, self._masters)

    def write_weights(self, model: Any, values: Mapping[str, Any]) -> None:
        """See ``Backend``."""
        weights.write(model, self._masters, values)

    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """See ``Backend``."""
        return convert.convert_model(model, inputs, policy, self._masters.read)

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """See ``Backend``."""
        return list(shapes.matmul_shapes(models))

    def peak_memory(self) -> int | None:
        """See ``Backend``."""
        return usage.peak_memory(self.device)

    def out_of_memory(self, error: BaseException) -> bool:
        """See ``Backend``."""
        return usage.out_of_memory(error)

    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        """See ``Backend``."""
        return usage.kernel_times(run)

    def compile(self, fn: Callable[..., Any], window: Any, mode: str) -> Callable[..., Any]:
        """See ``Backend``: on a GPU the whole step is captured in a CUDA graph, with ``torch.compile`` inside in mode
        "max"; elsewhere ``torch.compile``. The layer's calls are graph breaks and optimizers run uncompiled.
        """
        captures = self.device.type == "cuda" and not isinstance(fn, torch.nn.Module) and world_size() == 1
        if captures and mode == "default":
            return self._captured(fn, window)
        for name in _UNCOMPILED:
            if name not in self.__dict__:
                setattr(self, name, torch.compiler.disable(getattr(self, name)))
        overrides, switches = self.spec.policy.op_overrides, self._tuned.switches
        compiled = compile_step(fn, overrides, self._looks_at_layers, static=captures, switches=switches)
        return self._captured(compiled, window, Updates()) if captures else compiled

    def _captured(self, fn: Callable[..., Any], window: Any, updates: Updates | None = None) -> CapturedStep:
        if self._ground is None:
            self._ground = Ground.of(self.device, self._models, self._optimizers, self._steps, self.spec, self._masters)
        return CapturedStep(fn, self._ground, window, self._must_run, updates)

    def _must_run(self) -> bool:
        """Tell whether the next step's Python must run: a replay looks into nothing and notes nothing."""
        return self.diagnosing or self._notes is not None

    def _looks_at_layers(self) -> bool:
        return self._notes is not None and self._notes.activations

    def tracing(self) -> bool:
        """See ``Backend``: a step that is being captured has no values yet."""
        return self._steps.capturing

    def to_native(self, array: Any) -> Any:
        """See ``Backend``."""
        return arrays.to_native(array, self.device)

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """See ``Backend``: on a GPU from pinned memory, on a stream of its own."""
        return prefetch.ahead(batches, size, self.device)

    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend``."""
        return arrays.to_numpy(tensor)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend``."""
        return custom.wrap_custom(target, cast_inputs)
