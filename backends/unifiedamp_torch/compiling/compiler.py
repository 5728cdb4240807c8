"""The role that compiles whole steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        recording: returns whether this step is being recorded, and whether its activations are.
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
        recording: Callable[[], tuple[bool, bool]],
        untraced: Sequence[Untraced],
    ) -> None:
        self._spec, self._device, self._switches = spec, device, switches
        self.steps = steps
        self._recording, self._untraced = recording, untraced
        self._capture_context: CaptureContext | None = None
        self.replays_traces = traits(device).captures_graphs

    def compile(self, fn: Callable[..., Any], order: StepOrderState, mode: str) -> Callable[..., Any]:
        why, captures = self.why_uncompiled(fn), self.replays_traces and not isinstance(fn, torch.nn.Module)
        if why:
            self._warn_uncompiled(fn, why)
            return fn
        if captures and mode == "default":
            return self.captured(fn, order)
        models = self.steps.prepared.models
        if captures and why_shared(models):
            return self.captured(CompiledModels(fn, models, op_choices(self._spec.policy)), order)
        exclude_from_compilation(self._untraced)
        compiled = compile_step(
            fn.step if isinstance(fn, WrappedStep) else fn,
            op_choices(self._spec.policy),
            lambda: self._recording()[1] or self.steps.float8.runs_eager(),
            static=captures,
            switches=self._switches,
            flags=self.steps.flags,
            float8=self.steps.float8 if self.steps.float8.in_use else None,
        )
        if isinstance(fn, WrappedStep):
            compiled = fn.around(compiled)
        return self.captured(compiled, order, Updates()) if captures else compiled

    def why_uncompiled(self, fn: Callable[..., Any] | None = None) -> str:
        """Return why ``fn`` (None: a step) runs as it is written; empty where it is compiled or captured."""
        models, update = self.steps.prepared.models, self._spec.policy.update
        module = isinstance(fn, torch.nn.Module)
        shared = why_shared([*models, fn] if isinstance(fn, torch.nn.Module) else models)
        if shared and (module or not self.replays_traces):
            return f"{shared}, and steps of several ranks are captured in CUDA graphs or not compiled"
        if update and self.replays_traces and not module:
            return f"the host rounds the updates of update={update!r}, and a CUDA graph holds no work of the host"
        return why_uncaptured(models) if shared else ""

    def captured(self, fn: Callable[..., Any], order: StepOrderState, updates: Updates | None = None) -> CapturedStep:
        """Return a step that is captured and replayed, with compiled updates if there are any."""
        if self._capture_context is None:
            capturer, rates = CudaGraphCapturer(self._device), DeviceLearningRates(self._device)
            models = self.steps.prepared.models
            shared = SharedModels(models) if why_shared(models) else None
            self._capture_context = CaptureContext(capturer, rates, self.steps, self._spec, self._device.type, shared)
        return CapturedStep(fn, self._capture_context, order, self.must_run, updates)

    def must_run(self) -> bool:
        """Return whether the next step's Python must run: a replay inspects and records nothing."""
        return self.steps.reports.collect or self._recording()[0]

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
