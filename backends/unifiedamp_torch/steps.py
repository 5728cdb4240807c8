"""One optimizer step, with and without a loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import ScaleState, StepResult, errors, result

from . import gradients
from .autocast import recomputing
from .scale_state import DeviceScale, move
from .scaler import Scaler
from .update import Updates

Optimizer = torch.optim.Optimizer


class Handle:
    """What ``with amp.scale_loss(...) as scaled_loss`` gives; it is its own context.

    Attributes:
        value: the scaled loss, a float32 scalar.
    """

    __slots__ = ("_inputs", "_overrides", "value")

    def __init__(
        self, value: torch.Tensor, inputs: Sequence[torch.Tensor] | None, overrides: Mapping[str, str]
    ) -> None:
        self.value = value
        self._inputs = inputs
        self._overrides = overrides

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the parameters of the optimizers that ``scale_loss`` named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it.
        """
        before, recomputing.overrides = recomputing.overrides, self._overrides
        try:
            self.value.backward(retain_graph=retain_graph or None, inputs=self._inputs)
        finally:
            recomputing.overrides = before


class NotYet(Exception):
    """The step being captured needs one more step run by the host before it can be captured."""


def _check_capturable(optimizer: Any, ready: bool) -> None:
    if not ready:
        name = type(optimizer).__name__
        raise errors.UnsupportedError(
            f"amp.step: the host takes part in a step of this {name}; make it with fused=True"
        )


def checked_loss(loss: Any) -> torch.Tensor:
    """Return ``loss`` in float32.

    Raises:
        LossError: not a tensor, not a scalar, or not connected to any parameter.
    """
    if not isinstance(loss, torch.Tensor):
        raise errors.LossError(f"amp.scale_loss: the loss must be a torch.Tensor, got {type(loss).__name__}")
    if loss.dim():
        raise errors.LossError(
            f"amp.scale_loss: the loss must be a scalar, got shape {tuple(loss.shape)}; reduce it first, as by .mean()"
        )
    if not loss.requires_grad:
        raise errors.LossError(
            "amp.scale_loss: the loss is not connected to any parameter (it has no grad_fn): it was computed under "
            "torch.no_grad() or amp.inference(), detached, or all parameters are frozen"
        )
    return loss.float()


class PlainSteps:
    """Steps without loss scaling: no factor, no finite check, each step with gradients is applied."""

    _APPLIED = StepResult.of(True, False, result.APPLIED, 1.0, 1.0)

    def __init__(self) -> None:
        self._state = ScaleState()
        self._applied = 0
        self._settled: set[int] = set()
        self._updates: Updates | None = None
        self.capturing = False

    def unscale(self, optimizer: Optimizer) -> None:
        """Nothing to divide by."""

    def step(self, optimizer: Optimizer, update: bool) -> StepResult | None:
        """Apply the step; None when there are no gradients."""
        if not gradients.any_there(optimizer):
            return None
        compiled = self._updates.of(optimizer) if self._updates and id(optimizer) in self._settled else None
        if compiled is not None:
            compiled(None)
        else:
            if self.capturing:
                groups = optimizer.param_groups
                _check_capturable(optimizer, all(group.get("fused") or group.get("capturable") for group in groups))
            optimizer.step()
            self._settled.add(id(optimizer))
        gradients.drop(optimizer)
        self._applied += 1
        return self._APPLIED

    def use(self, updates: Updates | None) -> Updates | None:
        """Have steps done by compiled updates, or no longer; return what was used before."""
        before, self._updates = self._updates, updates
        return before

    def update(self) -> None:
        """Nothing to move."""

    def drop(self, optimizer: Optimizer) -> None:
        """Empty the gradients."""
        gradients.drop(optimizer)

    def mark(self) -> float:
        """Return the scale."""
        return 1.0

    def peek(self) -> ScaleState:
        """Return the counts."""
        return self.read()

    def read(self) -> ScaleState:
        """Return the counts."""
        state = self._state
        return ScaleState(1.0, 0, 0, state.applied_steps + self._applied, state.skipped_steps)

    def write(self, state: ScaleState) -> None:
        """Take over the counts."""
        self._state, self._applied = state, 0

    # -- capture: what the host keeps beside the device ------------------------------------------------------------

    def records(self) -> dict[int, dict[str, Any]]:
        """Return what was found in gradients so far in this iteration, by optimizer: nothing is looked for."""
        return {}

    def hold(self, records: dict[int, dict[str, Any]]) -> None:
        """Take over what :meth:`records` returned."""

    def begin_capture(self) -> int:
        """Note that the steps to come are captured and not done; return :meth:`counted`."""
        self.capturing = True
        return self._applied

    def counted(self) -> int:
        """Return how many steps the host has counted."""
        return self._applied

    def end_capture(self, counted: int) -> None:
        """Forget the steps that were captured."""
        self.capturing, self._applied = False, counted

    def replayed(self, counted: int) -> None:
        """Count the steps that a replay did."""
        self._applied += counted


class ScaledSteps:
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
        self.scaler = scaler
        self._state = scaler.state
        self._free = looking_is_free
        self._look_into = look_into
        self._settled: set[int] = set()
        self._updates: Updates | None = None
        self.capturing = False

    def use(self, updates: Updates | None) -> Updates | None:
        """Have steps and the move of the scale done by compiled updates, or no longer; return what was used before."""
        before, self._updates = self._updates, updates
        if isinstance(self._state, DeviceScale):
            self._state.move = move if updates is None else updates.move
        return before

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
            self._apply(optimizer, found[1])
            self._state.count(found)
            gradients.drop(optimizer)
        if update:
            self.scaler.update()
        if found is None:
            return None
        # A captured result is copied when it is handed out, so it may hold the scale itself.
        return self._state.result(found, before, self.scaler.scale_tensor if self.capturing else self._state.mark())

    def _apply(self, optimizer: Optimizer, found: torch.Tensor) -> None:
        compiled = self._updates.of(optimizer) if self._updates and id(optimizer) in self._settled else None
        if compiled is not None:
            compiled(found)
            self._look_into(optimizer, found)
            return
        if self._skips_in_kernel(optimizer):
            _step_in_kernel(optimizer, found)
            self._look_into(optimizer, found)
            return
        if self.capturing:
            _check_capturable(optimizer, getattr(optimizer, "_step_supports_amp_scaling", False))
            raise NotYet
        if found.item():
            self._look_into(optimizer, found)
        else:
            optimizer.step()
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

    # -- capture: what the host keeps beside the device ------------------------------------------------------------

    def records(self) -> dict[int, dict[str, Any]]:
        """Return what was found in gradients so far in this iteration, by optimizer."""
        return {key: dict(record) for key, record in self.scaler._per_optimizer_states.items()}

    def hold(self, records: dict[int, dict[str, Any]]) -> None:
        """Take over what :meth:`records` returned."""
        states = self.scaler._per_optimizer_states
        if states or records:
            states.clear()
            states.update({key: dict(record) for key, record in records.items()})

    def begin_capture(self) -> int:
        """Note that the steps to come are captured and not done; return :meth:`counted`."""
        self.capturing = True
        self._state.forget_mark()
        return 0

    def counted(self) -> int:
        """Return how many steps the host has counted: the device counts."""
        return 0

    def end_capture(self, counted: int) -> None:
        """Forget what belongs to the capture."""
        self.capturing = False
        self._state.forget_mark()

    def replayed(self, counted: int) -> None:
        """Note that the device has moved the scale."""
        self._state.forget_mark()


def _step_in_kernel(optimizer: Any, found: torch.Tensor) -> None:
    """Have a fused optimizer skip or apply by itself; its gradients are unscaled already."""
    optimizer.grad_scale, optimizer.found_inf = None, found
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf
