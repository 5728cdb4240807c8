"""What ``amp.scale_loss`` takes and gives: a loss that is checked, and a handle on the scaled one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Switches, errors

from .autocast import recomputing


class Handle:
    """What ``with amp.scale_loss(...) as scaled_loss`` gives; it is its own context.

    Args:
        value: see below.
        inputs: the parameters that get gradients; None means all.
        overrides: the session's op overrides.
        after: called when gradients are there.

    Attributes:
        value: the scaled loss, a float32 scalar.
    """

    __slots__ = ("_after", "_inputs", "_overrides", "_switches", "value")

    def __init__(
        self,
        value: torch.Tensor,
        inputs: Sequence[torch.Tensor] | None,
        overrides: Mapping[str, str],
        after: Callable[[], None],
        switches: Switches,
    ) -> None:
        self.value = value
        self._inputs = inputs
        self._after = after
        self._overrides = overrides
        self._switches = switches

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
            with self._switches:
                self.value.backward(retain_graph=retain_graph or None, inputs=self._inputs)
        finally:
            recomputing.overrides = before
        self._after()


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
