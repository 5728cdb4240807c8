"""What ``amp.scale_loss`` takes and gives: a loss that is checked, and a handle on the scaled one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Switches, errors

from ..precision.autocast import recomputing
from .native_calls import NativeCalls, note_pass, passes
from .thread_mark import ThreadMark


class Handle:
    """What ``with amp.scale_loss(...) as scaled_loss`` gives; it is its own context.

    Args:
        value: see below.
        optimizers: those that the loss trains.
        inputs: the parameters that get gradients; None means all.
        overrides: the session's op overrides.
        after: called when gradients are there.
        switches: held during the backward pass.
        native: the session's look at native calls.
        first: no other loss was scaled since the optimizers' last steps.
        loss: the unscaled loss.
        mark: what holds for the thread where the backward pass begins.
    """

    __slots__ = (
        "_after", "_first", "_handed_out", "_inputs", "_loss", "_mark", "_native", "_optimizers", "_overrides",
        "_switches", "_used", "_value",
    )  # fmt: skip

    def __init__(
        self,
        value: torch.Tensor,
        optimizers: Sequence[Any],
        inputs: Sequence[torch.Tensor] | None,
        overrides: Mapping[str, str],
        after: Callable[[], None],
        switches: Switches,
        native: NativeCalls,
        first: bool,
        loss: torch.Tensor,
        mark: ThreadMark,
    ) -> None:
        self._mark = mark
        self._value = value
        self._optimizers = optimizers
        self._native = native
        self._first, self._loss = first, loss
        self._used = self._handed_out = False
        self._inputs = inputs
        self._after = after
        self._overrides = overrides
        self._switches = switches

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and self._first and not self._used:
            self._native.check_unused(self._optimizers)

    @property
    def value(self) -> torch.Tensor:
        """The scaled loss, a float32 scalar; it may be differentiated by hand."""
        if not self._handed_out:
            self._use()
            self._handed_out = True
            if self._native.rescales:
                self._value.register_hook(note_pass)
        return self._value

    def _use(self) -> None:
        if self._first and not self._used:
            self._native.check_first(self._optimizers)
        self._native.use(self._optimizers)
        self._used = True

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the parameters of the optimizers that ``scale_loss`` named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it.
        """
        self._use()
        self._mark.set()
        before = recomputing.overrides
        try:
            recomputing.overrides = self._overrides
            passes.running.add(id(self))
            with self._switches:
                self._value.backward(retain_graph=retain_graph or None, inputs=self._inputs)
        finally:
            passes.running.discard(id(self))
            recomputing.overrides = before
        if self._first:
            self._native.differentiated(self._loss, self._optimizers)
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
