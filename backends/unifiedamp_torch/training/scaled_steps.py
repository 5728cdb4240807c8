"""Optimizer steps under a loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from unifiedamp.backend import ScaleState, StepResult

from . import gradients
from .native_calls import run_step
from .scale_state import DeviceScale, move
from .scaler import Scaler, step_in_kernel
from .steps import UNCOUNTED, NotYet, Optimizer, Steps, check_capturable, versions
from .update import Updates


class ScaledSteps(Steps):
    """Steps under a loss scaler.

    Args:
        scaler: the scaler.
        looking_is_free: reading ``found_inf`` waits for nothing.
        look_into: called with an optimizer whose step may have been skipped and its ``found_inf``, before its
            gradients are emptied.
    """

    def __init__(
        self, scaler: Scaler, looking_is_free: bool, look_into: Callable[[Optimizer, torch.Tensor], None]
    ) -> None:
        super().__init__()
        self.scaler = scaler
        self._state = scaler.state
        self._free = looking_is_free
        self._look_into = look_into

    def use(self, updates: Updates | None) -> Updates | None:
        """See ``Steps``; the move of the scale is compiled too."""
        if isinstance(self._state, DeviceScale):
            self._state.move = move if updates is None else updates.move
        return super().use(updates)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the float32 loss times the scale."""
        scale = self.scaler.scale_tensor
        return loss * (scale if scale.device == loss.device else scale.to(loss.device, non_blocking=True))

    def unscale(self, optimizer: Optimizer) -> None:
        """Decide finiteness and divide by the scale, in place."""
        self.scaler.check(optimizer)

    def step(self, optimizer: Optimizer, update: bool) -> StepResult | None:
        """Skip or apply, count, and move the scale when ``update``; None when there are no gradients."""
        found = self.scaler.check(optimizer)
        before = self._state.mark()
        if found is not None:
            self._apply(optimizer, found.inf)
            self._state.count(found)
            gradients.drop(optimizer)
        if update:
            self.scaler.update()
        if found is None:
            return None
        # A captured result is copied when it is handed out, so it may hold the scale itself.
        return self._state.result(found, before, self.scaler.scale_tensor if self.capturing else self._state.mark())

    def _apply(self, optimizer: Optimizer, found: torch.Tensor) -> None:
        compiled = self._compiled(optimizer)
        if compiled is not None:
            self._update(optimizer, UNCOUNTED, compiled, found)
            self._look_into(optimizer, found)
            return
        if self._skips_in_kernel(optimizer):
            self._update(optimizer, versions(optimizer), step_in_kernel, optimizer, found)
            self._look_into(optimizer, found)
            return
        if self.capturing:
            check_capturable(optimizer, getattr(optimizer, "_step_supports_amp_scaling", False))
            raise NotYet
        if found.item():
            self._look_into(optimizer, found)
        else:
            self._update(optimizer, versions(optimizer), run_step, optimizer)
            self._settled.add(id(optimizer))

    def _skips_in_kernel(self, optimizer: Optimizer) -> bool:
        # A first step that is skipped in the kernel would leave fused SGD's momentum buffers unwritten, so the host
        # decides until one step has been applied.
        return (
            not self._free
            and id(optimizer) in self._settled
            and getattr(optimizer, "_step_supports_amp_scaling", False)
        )

    def update(self) -> None:
        """End the iteration."""
        self.scaler.update()

    def drop(self, optimizer: Optimizer) -> None:
        """Empty the gradients and forget what was found in them."""
        gradients.drop(optimizer)
        self.scaler.forget(optimizer)

    def settle(self) -> None:
        """Complete what an interrupted move of the scale left."""
        self._state.settle()

    def mark(self) -> Any:
        """Return the scale in a form that later steps do not change."""
        return self._state.mark()

    def peek(self) -> ScaleState | None:
        """Return the scale and counts of a moment ago, if they are at hand."""
        return self._state.peek()

    def read(self) -> ScaleState:
        """Return the scale and counts."""
        return self._state.read()

    def write(self, state: ScaleState) -> None:
        """Take over the scale and counts."""
        self._state.write(state)

    def records(self) -> dict[int, dict[str, Any]]:
        """See ``Steps``."""
        return {key: dict(record) for key, record in self.scaler._per_optimizer_states.items()}

    def hold(self, records: Mapping[int, Mapping[str, Any]]) -> None:
        """See ``Steps``."""
        states = self.scaler._per_optimizer_states
        if states or records:
            states.clear()
            states.update({key: dict(record) for key, record in records.items()})

    def begin_capture(self) -> None:
        """See ``Steps``."""
        self._state.forget_mark()
        super().begin_capture()

    def end_capture(self, counted: int) -> None:
        """See ``Steps``."""
        self._state.forget_mark()
        super().end_capture(counted)

    def replayed(self, counted: int) -> None:
        """See ``Steps``: the device counted, and moved the scale."""
        self._state.forget_mark()
