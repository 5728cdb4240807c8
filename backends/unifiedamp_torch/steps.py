"""One optimizer step, with and without a loss scaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from unifiedamp.backend import ScaleState, StepResult, errors, result

from . import gradients
from .scaler import Scaler

Optimizer = torch.optim.Optimizer


class Handle:
    """What ``with amp.scale_loss(...) as scaled_loss`` gives; it is its own context.

    Attributes:
        value: the scaled loss, a float32 scalar.
    """

    __slots__ = ("_inputs", "value")

    def __init__(self, value: torch.Tensor, inputs: Sequence[torch.Tensor] | None) -> None:
        self.value = value
        self._inputs = inputs

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the parameters of the optimizers that ``scale_loss`` named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it.
        """
        self.value.backward(retain_graph=retain_graph or None, inputs=self._inputs)


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
    _NO_GRADIENTS = StepResult.of(False, False, result.NO_GRADIENTS, 1.0, 1.0)

    def __init__(self) -> None:
        self._state = ScaleState()
        self._applied = 0

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss as it is."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """Nothing to divide by."""

    def step(self, optimizer: Optimizer, update: bool) -> StepResult:  # noqa: ARG002
        """Apply the step if there are gradients."""
        if not gradients.any_there(optimizer):
            return self._NO_GRADIENTS
        optimizer.step()
        gradients.drop(optimizer)
        self._applied += 1
        return self._APPLIED

    def update(self) -> None:
        """Nothing to move."""

    def drop(self, optimizer: Optimizer) -> None:
        """Empty the gradients."""
        gradients.drop(optimizer)

    def read(self) -> ScaleState:
        """Return the counts."""
        state = self._state
        return ScaleState(1.0, 0, 0, state.applied_steps + self._applied, state.skipped_steps)

    def write(self, state: ScaleState) -> None:
        """Take over the counts."""
        self._state, self._applied = state, 0


class ScaledSteps:
    """Steps under a loss scaler.

    Args:
        scaler: the scaler.
        on_skip: called with an optimizer whose step was seen to be skipped, before its gradients are emptied.
    """

    def __init__(self, scaler: Scaler, looking_is_free: bool, on_skip: Any) -> None:
        self.scaler = scaler
        self._state = scaler.state
        self._free = looking_is_free
        self._on_skip = on_skip
        self._settled: set[int] = set()

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the float32 loss times the scale."""
        scale = self.scaler.scale_tensor()
        return loss * (scale if scale.device == loss.device else scale.to(loss.device, non_blocking=True))

    def unscale(self, optimizer: Optimizer) -> None:
        """Decide finiteness and divide by the scale, in place."""
        self.scaler.check(optimizer)

    def step(self, optimizer: Optimizer, update: bool) -> StepResult:
        """Skip or apply, count, and move the scale when ``update``."""
        found = self.scaler.check(optimizer)
        before = self._state.mark()
        if found is None:
            self.scaler.forget(optimizer)
        else:
            self._apply(optimizer, found)
            self._state.count(found)
            gradients.drop(optimizer)
        if update:
            self.scaler.update()
        if found is None:
            return self._no_gradients(before)
        return self._state.result(found, before, self._state.mark())

    def _apply(self, optimizer: Optimizer, found: torch.Tensor) -> None:
        if self._in_kernel(optimizer):
            optimizer.grad_scale, optimizer.found_inf = None, found[1]  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        elif found[1].item():
            self._on_skip(optimizer)
        else:
            optimizer.step()
            self._settled.add(id(optimizer))

    def _in_kernel(self, optimizer: Optimizer) -> bool:
        # A first step that is skipped in the kernel would leave fused SGD with momentum buffers never written, so
        # the host decides until one step has been applied.
        return (
            not self._free
            and getattr(optimizer, "_step_supports_amp_scaling", False)
            and id(optimizer) in self._settled
        )

    def _no_gradients(self, before: Any) -> StepResult:
        def read() -> Any:
            scale = float(before)
            return result.StepValues(False, False, result.NO_GRADIENTS, scale, scale)

        return StepResult(read)

    def update(self) -> None:
        """End the iteration."""
        self.scaler.update()

    def drop(self, optimizer: Optimizer) -> None:
        """Empty the gradients and forget what was found in them."""
        gradients.drop(optimizer)
        self.scaler.forget(optimizer)

    def read(self) -> ScaleState:
        """Return the scale and counts."""
        return self._state.read()

    def write(self, state: ScaleState) -> None:
        """Take over the scale and counts."""
        self._state.write(state)
