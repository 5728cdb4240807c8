"""Optimizer steps without a loss scaler."""

from __future__ import annotations

import torch

from unifiedamp.backend import ScaleState, StepResult, result

from ..device.kinds import traits
from ..distributed.agreement import Agreement
from . import gradients
from .ema import MovingAverages
from .kernel_skips import skips_in_kernel, step_in_kernel
from .scale_state import DeviceResult, Found, step_values
from .skip_conditions import SkipConditions
from .steps import CaptureDeferred, Optimizer, Steps, check_capturable, versions


class PlainSteps(Steps):
    """Steps without loss scaling: no factor, no finite check, each step with gradients is applied unless a condition of
    ``amp.skip_if`` drops it.

    Args:
        averages: the session's.
        conditions: those of ``amp.skip_if``.
        reads_without_sync: reading a condition waits for nothing.
        agreement: compares the ranks in the first step.
    """

    _APPLIED = StepResult.of(True, False, result.APPLIED, 1.0, 1.0)

    def __init__(
        self, averages: MovingAverages, conditions: SkipConditions, reads_without_sync: bool, agreement: Agreement
    ) -> None:
        super().__init__(averages, conditions)
        self._reads_without_sync, self._agreement = reads_without_sync, agreement
        self._state = ScaleState()
        self._applied = 0
        self._dropped: torch.Tensor | None = None  # of the applied ones; on the device, where the host cannot know

    def unscale(self, optimizer: Optimizer) -> None:
        """See ``Steps``: there is no scale."""

    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult | None:
        condition = self.conditions.take(optimizer)
        self._agreement.check_first_unscaled()
        if not gradients.has_gradients(optimizer):
            return None
        self._begin_float8()
        self._begin_averages(optimizer)
        found = None if condition is None else self._drop_if(condition)
        self._apply(optimizer, condition)
        self._move_averages(optimizer, found)
        self._end_float8(found, update_scale)
        if not self.keeps_gradients:
            gradients.zero_grad(optimizer)
        return self._count(found)

    def _drop_if(self, condition: torch.Tensor) -> Found:
        if self._dropped is None and not self._reads_without_sync:
            if self.capturing:
                raise CaptureDeferred  # each replay would zero a count that the capture allocates
            self._dropped = torch.zeros((), dtype=traits(condition.device).wide_dtype, device=condition.device)
        finite = torch.zeros_like(condition)
        return Found(finite, finite).dropped_if(condition)

    def _apply(self, optimizer: Optimizer, condition: torch.Tensor | None) -> None:
        compiled = None if self.updates is None else self._compiled(self.updates, optimizer)
        rounded = None if self._reads_without_sync else self._rounded(optimizer)
        if rounded is not None:
            self._update(optimizer, None, rounded, condition)
        elif compiled is not None:
            self._update(optimizer, None, compiled, condition)
        elif condition is not None:
            self._apply_unless(optimizer, condition)
        else:
            if self.capturing:
                groups = optimizer.param_groups
                check_capturable(optimizer, all(group.get("fused") or group.get("capturable") for group in groups))
            self._run_native(optimizer)

    def _apply_unless(self, optimizer: Optimizer, condition: torch.Tensor) -> None:
        if not self._reads_without_sync and self._skips_in_kernel(optimizer):
            self._update(optimizer, versions(optimizer), step_in_kernel, optimizer, condition)
            return
        if self.capturing:
            check_capturable(optimizer, skips_in_kernel(optimizer))
            raise CaptureDeferred
        if not condition.item():
            self._run_native(optimizer)

    def _count(self, found: Found | None) -> StepResult:
        """Count a step, and return its outcome."""
        if found is None:
            self._applied += 1
            return self._APPLIED
        if self._dropped is None:
            dropped = bool(found.skipped.item())
            self._applied += not dropped
            return StepResult.of(*step_values(False, dropped, 1.0, 1.0))
        self._applied += 1
        self._dropped.add_(found.skipped)
        one = torch.ones_like(found.skipped)
        return DeviceResult(found.inf, found.skipped, one, one)

    def update_scale(self) -> None:
        """See ``Steps``: there is no scale."""
        if self.float8 is not None:
            self.float8.end_iteration()

    def end_capture(self, counted: int) -> None:
        super().end_capture(counted)
        self._applied = counted

    def counted(self) -> int:
        return self._applied

    def replayed(self, counted: int) -> None:
        self._applied += counted

    def mark(self) -> float:
        return 1.0

    def read(self) -> ScaleState:
        state, dropped = self._state, 0 if self._dropped is None else int(self._dropped.item())
        return ScaleState(1.0, 0, 0, state.applied_steps + self._applied - dropped, state.skipped_steps)

    def poll(self) -> ScaleState | None:
        return self.read() if self._dropped is None else None

    def write(self, state: ScaleState) -> None:
        self._state, self._applied = state, 0
        if self._dropped is not None:
            self._dropped.zero_()
