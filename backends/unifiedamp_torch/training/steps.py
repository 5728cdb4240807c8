"""Optimizer steps: what steps with and without a loss scaler have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import ScaleState, StepResult, errors

from ..device.fused_optimizers import why_not_fused
from ..precision.float8_state import Float8State
from . import gradients
from .compiled_update import CompiledUpdate, Updates, compiles, traceable
from .ema import AverageDeferred, MovingAverages
from .kernel_skips import skips_in_kernel
from .native_calls import run_step
from .scale_state import Found
from .skip_conditions import SkipConditions
from .weight_updates import WeightUpdates

Optimizer = torch.optim.Optimizer


class CaptureDeferred(Exception):
    """The step being captured needs one more uncaptured step before it can be captured."""


def check_capturable(optimizer: Optimizer, ready: bool) -> None:
    """Refuse to capture a step that the host takes part in.

    Raises:
        UnsupportedError: not ``ready``.
    """
    if not ready:
        raise errors.UnsupportedError(
            f"amp.step: the host takes part in a step of this {type(optimizer).__name__}{_advice(optimizer)}"
        )


def _advice(optimizer: Optimizer) -> str:
    params = gradients.parameters(optimizer)
    sparse = {id(param) for param in params if param.grad is not None and param.grad.is_sparse}
    why = why_not_fused(optimizer, sparse)
    if not why:
        return "; make it with fused=True"
    return f" ({why})" + ('; amp.compile(mode="max") compiles it' if traceable(optimizer) and not sparse else "")


def versions(optimizer: Optimizer) -> list[int] | None:
    """Return the versions of the optimizer's parameters, which in-place updates change; None for a fused optimizer,
    whose updates do not.
    """
    if True in [group.get("fused") for group in optimizer.param_groups]:
        return None
    return [param._version for group in optimizer.param_groups for param in group["params"]]


class RunningUpdate(NamedTuple):
    """An update of parameters that began.

    Attributes:
        optimizer: whose parameters.
        versions: what :func:`versions` returned before it; None where versions do not tell of the update.
    """

    optimizer: Optimizer
    versions: list[int] | None

    def changed_parameters(self) -> bool:
        """Return whether parameters may have changed since it began."""
        return self.versions is None or versions(self.optimizer) != self.versions


class Steps(ABC):
    """Optimizer steps, eager, compiled or captured.

    A captured step runs on the device alone, but the host keeps state beside it: the findings in gradients of this
    iteration, and counts. ``compiling.capture_context`` saves that state, and restores it after each replay.

    Attributes:
        capturing: steps are being captured and not executed.
        updates: the compiled updates in use.
        conditions: see the argument.
        weight_updates: round updates to bfloat16 parameters; None where the optimizer's own step does.
        float8: what float8 layers keep; None in contexts without any.
        keeps_gradients: gradients stay after a step, for a loop of another owner to zero.

    Args:
        averages: the session's.
        conditions: those of ``amp.skip_if``.
    """

    def __init__(self, averages: MovingAverages, conditions: SkipConditions) -> None:
        self._averages, self.conditions = averages, conditions
        self.capturing = self.keeps_gradients = False
        self.updates: Updates | None = None
        self.weight_updates: WeightUpdates | None = None
        self.float8: Float8State | None = None
        self._stepped: set[int] = set()
        self._running: RunningUpdate | None = None

    # -- one step ------------------------------------------------------------------------------------------------

    @abstractmethod
    def unscale(self, optimizer: Optimizer) -> None:
        """Check the gradients for inf and nan, and divide them by the scale."""

    @abstractmethod
    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult | None:
        """Apply or skip, drop the gradients, count; None when there are no gradients."""

    @abstractmethod
    def update_scale(self) -> None:
        """End the iteration."""

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Drop the gradients, what was found in them, and conditions for the step."""
        gradients.zero_grad(optimizer)
        self.conditions.forget(optimizer)
        if self.float8 is not None:
            self.float8.discard()

    def _skips_in_kernel(self, optimizer: Optimizer) -> bool:
        # A first step that is skipped in the kernel would leave fused SGD's momentum buffers unwritten, so the host
        # decides until one step has been applied.
        return self.weight_updates is None and skips_in_kernel(optimizer) and id(optimizer) in self._stepped

    def use_updates(self, updates: Updates | None) -> None:
        """Run steps as compiled updates from here on, or no longer."""
        self.updates = updates

    def _compiled(self, updates: Updates, optimizer: Optimizer) -> CompiledUpdate | None:
        """Return the optimizer's compiled step; None for its first step, which creates its state, uncompiled."""
        if gradients.has_sparse(optimizer) or self.weight_updates is not None:
            return None  # torch.compile takes no sparse tensors
        if id(optimizer) not in self._stepped:
            if self.capturing and compiles(optimizer):
                raise CaptureDeferred
            return None
        update = updates.of(optimizer)
        if update is not None and self.capturing and not update.ran:
            raise CaptureDeferred  # a graph cannot hold what compiling asks of the device
        return update

    def _rounded(self, optimizer: Optimizer) -> Callable[[torch.Tensor | None], None] | None:
        """Return an update that is rounded on the device; None where it is not rounded, or by the host."""
        if self.weight_updates is None:
            return None
        # Also in the first step after a state was loaded: the host's arithmetic may differ in the last bit.
        update = self.weight_updates.device_update(optimizer, self.capturing)
        if update is None and self.capturing:
            raise CaptureDeferred
        return update

    def _update(self, optimizer: Optimizer, before: list[int] | None, run: Callable[..., Any], *args: Any) -> None:
        """Update the optimizer's parameters by ``run(*args)``; ``before``: see :class:`RunningUpdate`."""
        self._running = RunningUpdate(optimizer, before)
        run(*args)
        self._running = None

    def _run_native(self, optimizer: Optimizer) -> None:
        """Run the optimizer's own step, which is applied."""
        run = run_step if self.weight_updates is None else self.weight_updates.run
        self._update(optimizer, versions(optimizer), run, optimizer)
        self._stepped.add(id(optimizer))

    def _begin_averages(self, optimizer: Optimizer) -> None:
        """Before a step; see ``MovingAverages``."""
        if self._averages.in_use:
            try:
                self._averages.begin(optimizer, self.capturing)
            except AverageDeferred:
                raise CaptureDeferred from None

    def _move_averages(self, optimizer: Optimizer, found: Found | None) -> None:
        """After a step."""
        if self._averages.in_use:
            self._averages.end(optimizer, found)

    def _begin_float8(self) -> None:
        """Before a step."""
        if self.float8 is not None and self.float8.in_use:
            self.float8.begin_step()

    def _end_float8(self, found: Found | None, ends_iteration: bool) -> None:
        """After a step, applied or skipped."""
        if self.float8 is not None and self.float8.in_use:
            self.float8.end_step(None if found is None else found.skipped, ends_iteration)

    # -- interruptions -------------------------------------------------------------------------------------------

    def partly_updated(self, optimizers: Sequence[Optimizer]) -> bool:
        """Return whether an update of one of these began, changed parameters and did not end."""
        running = self._running
        if running is None or self.capturing:
            return False
        return any(each is running.optimizer for each in optimizers) and running.changed_parameters()

    def forget_update(self) -> None:
        """Accept the parameters as an interrupted update left them."""
        self._running = None

    def repair(self) -> None:
        """Complete an update of the scale that was interrupted."""

    # -- captures ------------------------------------------------------------------------------------------------

    def findings(self) -> dict[int, dict[str, Any]]:
        """Return what was found in gradients so far in this iteration, by optimizer."""
        return {}

    def restore_findings(self, findings: Mapping[int, Mapping[str, Any]]) -> None:
        """Restore what :meth:`findings` returned."""

    def begin_capture(self) -> None:
        """Capture the steps to come instead of executing them."""
        self.capturing = True

    def end_capture(self, counted: int) -> None:
        """Forget the steps that were captured; ``counted`` is what :meth:`counted` returned before."""
        self.capturing = False
        self._running = None

    def counted(self) -> int:
        """Return how many steps the host has counted."""
        return 0

    def replayed(self, counted: int) -> None:
        """Count the steps of a replay."""

    # -- state ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def mark(self) -> Any:
        """Return the scale in a form that later steps do not change."""

    @abstractmethod
    def read(self) -> ScaleState:
        """Return the scale and counts; may wait for the device."""

    @abstractmethod
    def poll(self) -> ScaleState | None:
        """Return the scale and counts of a moment ago, if they have arrived; never waits."""

    @abstractmethod
    def write(self, state: ScaleState) -> None:
        """Set the scale and counts."""
