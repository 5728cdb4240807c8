"""Optimizer steps without a loss scaler."""

from __future__ import annotations

from unifiedamp.backend import ScaleState, StepResult, result

from . import gradients
from .ema import MovingAverages
from .native_calls import run_step
from .steps import Optimizer, Steps, check_capturable, versions


class PlainSteps(Steps):
    """Steps without loss scaling: no factor, no finite check, each step with gradients is applied."""

    _APPLIED = StepResult.of(True, False, result.APPLIED, 1.0, 1.0)

    def __init__(self, averages: MovingAverages) -> None:
        super().__init__(averages)
        self._state = ScaleState()
        self._applied = 0

    def unscale(self, optimizer: Optimizer) -> None:
        """See ``Steps``: there is no scale."""

    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult | None:
        if not gradients.has_gradients(optimizer):
            return None
        self._begin_averages(optimizer)
        compiled = None if self.updates is None else self._compiled(self.updates, optimizer)
        if compiled is not None:
            self._update(optimizer, None, compiled, None)
        else:
            if self.capturing:
                groups = optimizer.param_groups
                check_capturable(optimizer, all(group.get("fused") or group.get("capturable") for group in groups))
            self._update(optimizer, versions(optimizer), run_step, optimizer)
            self._stepped.add(id(optimizer))
        self._move_averages(optimizer, None)
        if not self.keeps_gradients:
            gradients.zero_grad(optimizer)
        self._applied += 1
        return self._APPLIED

    def update_scale(self) -> None:
        """See ``Steps``: there is no scale."""

    def zero_grad(self, optimizer: Optimizer) -> None:
        gradients.zero_grad(optimizer)

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
        state = self._state
        return ScaleState(1.0, 0, 0, state.applied_steps + self._applied, state.skipped_steps)

    def poll(self) -> ScaleState:
        return self.read()

    def write(self, state: ScaleState) -> None:
        self._state, self._applied = state, 0
