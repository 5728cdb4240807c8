"""Optimizer steps under a loss scaler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import ScaleState, StepResult

from . import gradients
from .compiled_update import Updates
from .ema import MovingAverages
from .kernel_skips import skips_in_kernel, step_in_kernel
from .nonfinite import SkipReports
from .scale_state import DeviceScale, Found
from .scale_transition import update_scale
from .scaler import Scaler
from .skip_conditions import SkipConditions
from .steps import CaptureDeferred, Optimizer, Steps, check_capturable, versions


class ScaledSteps(Steps):
    """Steps under a loss scaler.

    Args:
        scaler: the scaler.
        reads_without_sync: reading ``found_inf`` waits for nothing.
        averages: the session's.
        conditions: those of ``amp.skip_if``.
        reports: inspects each step that may have been skipped, before its gradients are dropped.

    Attributes:
        per_optimizer: each optimizer's step updates the scale by its own finding, and leaves what was found in the
            gradients of others.
    """

    def __init__(
        self,
        scaler: Scaler,
        reads_without_sync: bool,
        reports: SkipReports,
        averages: MovingAverages,
        conditions: SkipConditions,
    ) -> None:
        super().__init__(averages, conditions)
        self.scaler = scaler
        self._state = scaler.state
        self._reads_without_sync = reads_without_sync
        self._reports = reports
        self.per_optimizer = False

    def unscale(self, optimizer: Optimizer) -> None:
        self.scaler.check(optimizer)

    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult | None:
        condition = self.conditions.take(optimizer)  # before what not every rank does
        found = self.scaler.check(optimizer)
        if found is not None and condition is not None:
            found = self.scaler.drop_if(optimizer, condition)
        before = self._state.mark()
        if found is not None:
            self._begin_float8()
            self._begin_averages(optimizer)
            if gradients.has_gradients(optimizer):  # else other ranks have some
                self._apply(optimizer, found)
            self._move_averages(optimizer, found)
            self._end_float8(found, update_scale)
            self._state.count(found)
            if not self.keeps_gradients:
                gradients.zero_grad(optimizer)
        if update_scale:
            self._update_scale(optimizer)
        if found is None:
            return None
        # A captured result is copied when it is returned, so it may hold the scale itself.
        return self._state.result(found, before, self._state.scale if self.capturing else self._state.mark())

    def _apply(self, optimizer: Optimizer, found: Found) -> None:
        compiled = None if self.updates is None else self._compiled(self.updates, optimizer)
        if compiled is not None:
            self._update(optimizer, None, compiled, found.skipped)
            self._reports.inspect(optimizer, found.inf, self.capturing)
            return
        rounded = None if self._reads_without_sync else self._rounded(optimizer)
        if rounded is not None:
            self._update(optimizer, None, rounded, found.skipped)
            self._reports.inspect(optimizer, found.inf, self.capturing)
            return
        if not self._reads_without_sync and self._skips_in_kernel(optimizer):
            self._update(optimizer, versions(optimizer), step_in_kernel, optimizer, found.skipped)
            self._reports.inspect(optimizer, found.inf, self.capturing)
            return
        if self.capturing:
            check_capturable(optimizer, skips_in_kernel(optimizer))
            raise CaptureDeferred
        if found.skipped.item():
            self._reports.inspect(optimizer, found.inf, False)
        else:
            self._run_native(optimizer)

    def _update_scale(self, optimizer: Optimizer) -> None:
        if self.per_optimizer:
            self.scaler.update_by(optimizer)
        else:
            self.scaler.update()

    def update_scale(self) -> None:
        if not self.per_optimizer:
            self.scaler.update()
        if self.float8 is not None:
            self.float8.end_iteration()

    def zero_grad(self, optimizer: Optimizer) -> None:
        super().zero_grad(optimizer)
        self.scaler.forget(optimizer)

    def use_updates(self, updates: Updates | None) -> None:
        """See ``Steps``; the update of the scale is compiled too."""
        if isinstance(self._state, DeviceScale):
            self._state.transition = update_scale if updates is None else updates.update_scale
        super().use_updates(updates)

    def repair(self) -> None:
        self._state.repair()

    # -- captures ------------------------------------------------------------------------------------------------

    def findings(self) -> dict[int, dict[str, Any]]:
        return self.scaler.findings()

    def restore_findings(self, findings: Mapping[int, Mapping[str, Any]]) -> None:
        self.scaler.restore_findings(findings)

    def begin_capture(self) -> None:
        self._state.forget_mark()
        super().begin_capture()

    def end_capture(self, counted: int) -> None:
        self._state.forget_mark()
        super().end_capture(counted)

    def replayed(self, counted: int) -> None:
        """See ``Steps``: the device counted, and updated the scale."""
        self._state.forget_mark()

    # -- state ---------------------------------------------------------------------------------------------------

    def mark(self) -> Any:
        return self._state.mark()

    def read(self) -> ScaleState:
        return self._state.read()

    def poll(self) -> ScaleState | None:
        return self._state.poll()

    def write(self, state: ScaleState) -> None:
        self._state.write(state)
