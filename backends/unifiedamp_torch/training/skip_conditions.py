"""Conditions of ``amp.skip_if``: they wait on the device for the step that they may drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor

from unifiedamp.backend import errors

from ..distributed.ranks import TrainingRanks

Condition = bool | torch.Tensor
"""A condition: known on the host, or a float32 scalar on the session's device, 1 where it holds and else 0."""


class SkipConditions:
    """The conditions under which the next step of an optimizer is dropped.

    Args:
        device: the session's.
        ranks: those that drop a step together.
    """

    def __init__(self, device: torch.device, ranks: TrainingRanks) -> None:
        self._device, self._ranks = device, ranks
        self._pending: dict[int, Condition] = {}

    def add(self, condition: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Drop the next step of each optimizer also where ``condition`` holds.

        Raises:
            WrongObjectError: it is neither a bool nor a scalar tensor of torch.
        """
        known = condition if isinstance(condition, bool) else self._flag(condition)
        for optimizer in optimizers:
            self._pending[id(optimizer)] = self._either(self._pending.get(id(optimizer), False), known)

    def _flag(self, condition: object) -> torch.Tensor:
        tensor = _checked(condition)
        return (tensor.detach() != 0).to(self._device, torch.float32, non_blocking=True)

    def _either(self, one: Condition, other: Condition) -> Condition:
        if isinstance(one, bool):
            return one or other if isinstance(other, bool) else other if not one else True
        return other if other is True else one if isinstance(other, bool) else torch.maximum(one, other)

    def of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a condition was given for the next step of an optimizer."""
        return id(optimizer) in self._pending

    def take(self, optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        """Return whether the step that begins is dropped on all ranks, a float32 scalar; None where it cannot be.

        Communicates where there are several ranks and a condition was given, on this rank and so on all.
        """
        condition = self._pending.pop(id(optimizer), None)
        alone = not self._ranks.groups
        if condition is None or (alone and condition is False):
            return None
        if isinstance(condition, bool):
            condition = torch.full((), float(condition), device=self._device)
        elif not alone:
            condition = condition.clone()  # that of several optimizers
        self._ranks.reduce(condition)
        return condition

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the conditions for an optimizer's next step."""
        self._pending.pop(id(optimizer), None)

    def pending(self) -> dict[int, Condition]:
        """Return a copy of the conditions, by optimizer."""
        return dict(self._pending)

    def restore(self, pending: Mapping[int, Condition]) -> None:
        """Restore what :meth:`pending` returned."""
        if self._pending or pending:
            self._pending = dict(pending)


def _checked(condition: object) -> torch.Tensor:
    if not isinstance(condition, torch.Tensor):
        got = f"got {type(condition).__module__}.{type(condition).__name__}"
    elif condition.dim():
        got = f"got shape {tuple(condition.shape)}; reduce it first, as by .any()"
    elif condition.is_complex():
        got = f"got {condition.dtype}"
    elif condition.is_meta or isinstance(condition, FakeTensor):
        got = "got one without a value (torch.device('meta'), FakeTensorMode)"
    elif condition.layout is not torch.strided:
        got = f"got {condition.layout}; call .to_dense() first"
    else:
        return condition.full_tensor() if hasattr(condition, "full_tensor") else condition
    raise errors.WrongObjectError(
        f"amp.skip_if: the condition must be a bool, or a scalar torch.Tensor of bools or numbers; {got}"
    )
