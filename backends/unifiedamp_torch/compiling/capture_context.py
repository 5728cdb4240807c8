"""What the captured steps of one session share, and the state that Python keeps beside a captured step."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from unifiedamp.backend import SessionSpec, StepOrderState

from ..training.compiled_update import Updates, compiles_in_this_thread
from ..training.gradients import parameters
from ..training.step_context import StepContext
from .capture_state import CaptureState, fixed_by_capture
from .device_learning_rates import DeviceLearningRates, Kept
from .recorded_calls import CallRecorder
from .shared_models import SharedModels


class GraphCapturer(Protocol):
    """Captures functions, see ``graph.CudaGraphCapturer``."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` where it will be captured."""

    def capture(self, fn: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture ``fn``; return its replay and its output."""


@dataclass
class CaptureContext:
    """What the captured steps of one session share.

    Attributes:
        capturer: captures steps.
        rates: the optimizers' learning rates on the device.
        steps: what the session's roles share of its steps.
        spec: to warn through.
        device_type: the device's, whose autocast state is part of a signature.
        recorder: records calls.
        shared: models that several ranks train; None where this process trains alone.
    """

    capturer: GraphCapturer
    rates: DeviceLearningRates
    steps: StepContext
    spec: SessionSpec
    device_type: str
    recorder: CallRecorder
    shared: SharedModels | None = None

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all optimizers, in order."""
        return [param for optimizer in self.steps.prepared.optimizers for param in parameters(optimizer)]

    def warm_up(self, least: int) -> int:
        """Return how many uncaptured calls a step needs before its capture; ``least``: without other ranks."""
        return least if self.shared is None else self.shared.warm_up(least)

    @property
    def attempts(self) -> int:
        """How many captures of a step may fail: the reducer of DDP times every hundredth step on the device."""
        return 1 if self.shared is None else 2

    def fixed(self) -> Hashable:
        """Return everything that a capture fixes now."""
        return (
            fixed_by_capture(self.steps.prepared),
            self.steps.reports.keep,
            self.steps.averages.version,
            self.steps.prepared.updates.version,
            self.steps.prepared.late.layout(),
            self.steps.float8.fixed(),
            self.spec.policy,
        )

    @contextlib.contextmanager
    def capturable(self, updates: Updates | None) -> Iterator[None]:
        """Set up optimizers and steps for a capture; restored on exit."""
        kept: Kept = []
        steps = self.steps.steps
        before = steps.updates
        try:
            prepared = self.steps.prepared
            self.rates.install(prepared.optimizers, updates is not None, kept, prepared.sparse)
            steps.use_updates(updates)
            yield
        finally:
            steps.use_updates(before)
            self.rates.restore(kept)

    def run(self, fn: Callable[[], Any], updates: Updates | None) -> Any:
        """Run ``fn`` uncaptured, with compiled updates if there are any."""
        if self.shared is not None:
            self.capturer.run(self.shared.make_ready)
        if updates is None or not compiles_in_this_thread():
            return self.capturer.run(fn)
        with self.capturable(updates):
            return self.capturer.run(fn)

    def capture(self, fn: Callable[[], Any], updates: Updates | None, records: bool) -> tuple[Callable[[], None], Any]:
        """Capture ``fn``; return its replay, and its output with what it recorded, packed (None: nothing)."""
        usable = updates if compiles_in_this_thread() else None
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.capturable(usable))
            stack.enter_context(without_garbage_collection())
            packed = stack.enter_context(self.recorder.capturing()) if records else _nothing
            return self.capturer.capture(lambda: (fn(), packed()))

    def state(self, order: StepOrderState) -> CaptureState:
        """Return what Python holds now."""
        gradients = [param.grad for param in self.parameters()]
        steps, native = self.steps.steps, self.steps.native
        conditions, window = steps.conditions.pending(), self.steps.float8.window()
        return CaptureState(gradients, steps.findings(), order.snapshot(), native.pending(), conditions, window)

    def restore(self, state: CaptureState, order: StepOrderState) -> None:
        """Make Python hold what it held then."""
        for param, grad in zip(self.parameters(), state.gradients, strict=True):
            if param.grad is not grad:
                param.grad = grad
        self.steps.steps.restore_findings(state.findings)
        self.steps.steps.conditions.restore(state.conditions)
        self.steps.native.restore(state.pending)
        self.steps.float8.restore_window(state.window)
        order.restore(state.order)


def _nothing() -> None:
    """Pack what an unrecorded call has noted."""


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collector: freeing pinned memory or a graph asks things of the device."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
