"""The role that compiles whole steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Compiler, SessionSpec, StepOrderState, Switches, WrappedStep, errors

from ..device.kinds import traits
from ..distributed.wrapped import why_shared
from ..precision.emulation import op_choices
from ..training.compiled_update import Updates
from ..training.step_context import StepContext
from .capture_context import CaptureContext
from .captured_step import CapturedStep
from .compile import compile_step
from .device_learning_rates import DeviceLearningRates
from .graph import CudaGraphCapturer
from .recorded_calls import CallRecorder
from .shared_models import CompiledModels, SharedModels, why_uncaptured

Untraced = tuple[object, Sequence[str]]
"""A role, and its methods that run uncompiled inside compiled steps."""


class TorchCompiler(Compiler):
    """On a GPU the whole step is captured in a CUDA graph, with ``torch.compile`` inside in mode "max"; elsewhere
    ``torch.compile``. The session's calls are graph breaks, and optimizers run uncompiled.

    Args:
        spec: the session's.
        device: the session's.
        steps: what the session's roles share of its steps.
        switches: process-wide settings, held around compiled steps.
        recorder: records the calls of captured steps.
        counting: returns whether this step is counted for a forecast, whose Python must run.
        untraced: excluded from compilation once something is compiled.

    Attributes:
        steps: see the argument.
    """

    means = "torch.compile; on CUDA devices the whole step in a CUDA graph"

    def __init__(
        self,
        spec: SessionSpec,
        device: torch.device,
        steps: StepContext,
        switches: Switches,
        recorder: CallRecorder,
        counting: Callable[[], bool],
        untraced: Sequence[Untraced],
    ) -> None:
        self._spec, self._device, self._switches = spec, device, switches
        self.steps = steps
        self._recorder, self._counting, self._untraced = recorder, counting, untraced
        self._capture_context: CaptureContext | None = None
        self.replays_traces = traits(device).captures_graphs

    def compile(self, fn: Callable[..., Any], order: StepOrderState, mode: str) -> Callable[..., Any]:
        if isinstance(fn, torch.nn.Module) and any(
            op_choices(each) != self._op_choices() for each in self._spec.policies
        ):
            raise errors.UnsupportedError(
                f"amp.compile({type(fn).__name__}): torch.compile traces a model under one set of op_overrides and "
                "emulate, and the policies of this session's schedule differ in them: compile the step that calls it"
            )
        why, captures = self.why_uncompiled(fn), self.replays_traces and not isinstance(fn, torch.nn.Module)
        if why:
            self._warn_uncompiled(fn, why)
            return fn
        if captures and mode == "default":
            return self.captured(fn, order)
        models, self._recorder.runs_uncompiled = self.steps.prepared.models, True
        if captures and why_shared(models):
            step = CompiledModels(fn, models, self._op_choices)
            return self.captured(step, order, must_run=lambda: self.must_run() or self._looks_at_layers())
        exclude_from_compilation(self._untraced)
        # Such a step is compiled twice, so only where the fastest step is asked for.
        inside = mode == "max"
        looks_at_layers = functools.partial(self._looks_at_layers, inside)
        compiled = compile_step(
            fn.step if isinstance(fn, WrappedStep) else fn,
            self._op_choices,
            lambda: looks_at_layers() or self.steps.float8.runs_eager(),
            recorder=self._recorder if inside else None,
            static=captures,
            switches=self._switches,
            flags=self.steps.flags,
            float8=self.steps.float8 if self.steps.float8.in_use else None,
            policy=(lambda: self._spec.policy) if self._spec.schedule is not None else None,
        )
        if not isinstance(fn, torch.nn.Module):
            compiled = self.steps.prepared.dtypes.explained(compiled)
        if isinstance(fn, WrappedStep):
            compiled = fn.around(compiled)
        if not captures:
            return compiled
        return self.captured(compiled, order, Updates(), lambda: self.must_run() or looks_at_layers())

    def _op_choices(self) -> Mapping[str, str]:
        return op_choices(self._spec.policy)

    def why_uncompiled(self, fn: Callable[..., Any] | None = None) -> str:
        """Return why ``fn`` (None: a step) runs as it is written; empty where it is compiled or captured."""
        models, dtype = self.steps.prepared.models, self._spec.policy.state_dtype
        module = isinstance(fn, torch.nn.Module)
        shared = why_shared([*models, fn] if isinstance(fn, torch.nn.Module) else models)
        if shared and (module or not self.replays_traces):
            return f"{shared}, and steps of several ranks are captured in CUDA graphs or not compiled"
        if dtype == "float8" and self.replays_traces and not module:
            return f"the host packs the moments of state_dtype={dtype!r}, and a CUDA graph holds no work of the host"
        return why_uncaptured(models, self._device.type) if shared else ""

    def captured(
        self, fn: Callable[..., Any], order: StepOrderState, updates: Updates | None = None,
        must_run: Callable[[], bool] | None = None,
    ) -> CapturedStep:  # fmt: skip
        """Return a step that is captured and replayed, with compiled updates if there are any."""
        if self._capture_context is None:
            capturer, rates = CudaGraphCapturer(self._device), DeviceLearningRates(self._device)
            models = self.steps.prepared.models
            shared = SharedModels(models) if why_shared(models) else None
            self.steps.ranks.shards_wait = False
            self._capture_context = CaptureContext(
                capturer, rates, self.steps, self._spec, self._device.type, self._recorder, shared
            )
        return CapturedStep(fn, self._capture_context, order, must_run or self.must_run, updates)

    def must_run(self) -> bool:
        """Return whether the next step's Python must run: a replay inspects nothing, counts no products, and does not
        look at what other ranks loaded.
        """
        return self.steps.reports.collect or self._counting() or self.steps.loaded.alone

    def _looks_at_layers(self, inside: bool = False) -> bool:
        """Return whether the layers of this step must call hooks, which compiled code does not.

        Args:
            inside: their outputs may be recorded in what is compiled.
        """
        records = self._recorder.records_layers() and not (inside and self._recorder.traces_layers())
        return records or self._counting()

    def tracing(self) -> bool:
        return self.steps.steps.capturing  # a step that is being captured has no values yet

    def _warn_uncompiled(self, fn: Callable[..., Any], why: str) -> None:
        name = getattr(fn, "__name__", type(fn).__name__)
        self._spec.warn(
            f"amp.compile: {name} runs as it is written, because {why}; call it without amp.compile to silence this",
            errors.CompileWarning,
        )


def exclude_from_compilation(untraced: Sequence[Untraced]) -> None:
    """Make methods run uncompiled inside compiled steps, what they call included.

    Once something is compiled, and not before: wrapping them imports dynamo, which takes seconds.
    """
    for role, methods in untraced:
        for name in methods:
            if name not in vars(role):
                wrapped = torch.compiler.disable(getattr(role, name))  # type: ignore[no-untyped-call]  # torch's
                setattr(role, name, wrapped)
