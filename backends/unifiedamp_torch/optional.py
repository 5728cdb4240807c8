"""torch's optional calls, in the order of ``unifiedamp.backend.optional``; looking into
skipped steps; and compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import (
    LegacyBackend,
    MatmulShape,
    NonFiniteReport,
    PlanRow,
    Policy,
    SessionSpec,
    errors,
    recording,
)

from .compiling.capture import CapturedStep, Ground
from .compiling.compile import compile_step
from .device import devices, prefetch, tuning, usage
from .distributed.wrappers import why_spread
from .models import convert, epsilons, shapes, weights
from .recording.recorder import Notes
from .training import nonfinite
from .training.master_weights import Masters
from .training.native_calls import NativeCalls
from .training.scaled_steps import ScaledSteps
from .training.steps import NotYet, PlainSteps
from .training.thread_mark import ThreadMark
from .training.update import Updates

_UNCOMPILED = (
    "step", "unscale", "clip_grad_norm", "clip_grad_value", "begin_recording", "note_gradients", "end_recording",
)  # fmt: skip


class TorchExtras(LegacyBackend):
    """The base of ``TorchBackend`` that holds these calls, and what they read of the session."""

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self.device = devices.pick_device(spec.device)
        self._tuned = tuning.Tuned(spec, self.device)
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[Any] = []
        self._mark = ThreadMark(self.device.type)
        self._masters = Masters()
        self._native = NativeCalls(spec.loss_scale.scale_bounds != (1, 1) or spec.accumulate_steps > 1, self._masters)
        self._steps: PlainSteps | ScaledSteps = PlainSteps()
        self._report, self._skips = NonFiniteReport(), nonfinite.LastSkips()
        self._loss: torch.Tensor | None = None
        self._notes: Notes | None = None
        self._ground: Ground | None = None

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The native scaler, for torch's own tools; None without loss scaling."""
        return self._steps.scaler if isinstance(self._steps, ScaledSteps) else None

    # -- settings ------------------------------------------------------------------------------------------------

    def tuning_rows(self) -> list[PlanRow]:
        """See ``Backend``."""
        return self._tuned.rows()

    def debugging_switches(self) -> dict[str, str]:
        """See ``Backend``."""
        return tuning.debugging_switches()

    # -- the last skipped step -----------------------------------------------------------------------------------

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
                self._report = nonfinite.non_finite(self.gradients(optimizer), self._loss)
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

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """See ``Backend``: on a GPU from pinned memory, on a stream of its own."""
        return prefetch.ahead(batches, size, self.device)

    # -- compiling -----------------------------------------------------------------------------------------------

    def compile(self, fn: Callable[..., Any], window: Any, mode: str) -> Callable[..., Any]:
        """See ``Backend``: on a GPU the whole step is captured in a CUDA graph, with ``torch.compile`` inside in mode
        "max"; elsewhere ``torch.compile``. The layer's calls are graph breaks and optimizers run uncompiled.
        """
        spread = why_spread([*self._models, fn] if isinstance(fn, torch.nn.Module) else self._models)
        if spread:
            name = getattr(fn, "__name__", type(fn).__name__)
            self.spec.warn(
                f"amp.compile: {name} runs as it is written, because {spread}: torch.compile and CUDA graphs do not "
                "take part in the reduction of gradients reliably; call it without amp.compile to silence this",
                errors.CompileWarning,
            )
            return fn
        captures = self.device.type == "cuda" and not isinstance(fn, torch.nn.Module)
        if captures and mode == "default":
            return self._captured(fn, window)
        for name in _UNCOMPILED:
            if name not in self.__dict__:
                setattr(self, name, torch.compiler.disable(getattr(self, name)))
        overrides, switches = self.spec.policy.op_overrides, self._tuned.switches
        mark = self._mark.set_with_regions
        compiled = compile_step(fn, overrides, self._looks_at_layers, static=captures, switches=switches, begin=mark)
        return self._captured(compiled, window, Updates()) if captures else compiled

    def _captured(self, fn: Callable[..., Any], window: Any, updates: Updates | None = None) -> CapturedStep:
        if self._ground is None:
            shared = (
                self._models, self._optimizers, self._steps, self.spec, self._masters, self._native, self._mark,
            )  # fmt: skip
            self._ground = Ground.of(self.device, *shared)
        return CapturedStep(fn, self._ground, window, self._must_run, updates)

    def _must_run(self) -> bool:
        """Tell whether the next step's Python must run: a replay looks into nothing and notes nothing."""
        return self.diagnosing or self._notes is not None

    def _looks_at_layers(self) -> bool:
        return self._notes is not None and self._notes.activations

    def tracing(self) -> bool:
        """See ``Backend``: a step that is being captured has no values yet."""
        return self._steps.capturing
