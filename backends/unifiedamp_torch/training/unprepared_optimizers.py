"""Optimizers that step beside the session and were not prepared: the gradients of scaled losses reach their parameters
too, and their steps would be as many times too large.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from unifiedamp.backend import errors

from .compensations import version_of
from .gradients import local_part, parameters

Optimizer = torch.optim.Optimizer
GradState = tuple[weakref.ref[torch.Tensor], int] | None


class UnpreparedOptimizers:
    """Follows which gradients scaled losses left in parameters that no prepared optimizer has.

    Parameters of prepared models are followed from the start; those of other models from the first step of their
    optimizer on. Of those, gradients are also summed: what a loop writes to ``param.grad.data`` changes no version.
    """

    def __init__(self) -> None:
        self._models: list[torch.nn.Module] = []
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._unowned: list[torch.Tensor] = []
        self._before: list[tuple[torch.Tensor, GradState]] = []
        self._scaled: dict[int, tuple[GradState, torch.Tensor | None]] = {}

    def follow(self, models: Iterable[torch.nn.Module], owned: Iterable[torch.Tensor]) -> None:
        """Follow prepared models; ``owned``: the parameters that prepared optimizers train."""
        self._models += models
        ids = {id(param) for param in owned}
        params = {id(param): param for model in self._models for param in model.parameters()}
        self._unowned = [param for key, param in params.items() if key not in ids and param.requires_grad]

    def before_backward(self) -> None:
        """Note the gradients before a scaled loss is differentiated."""
        if self._unowned or self._known:
            others = [param for each in self._known for param in parameters(each)]
            self._before = [(param, _state(param)) for param in (*self._unowned, *others)]

    def after_backward(self) -> None:
        """Note what it left."""
        stepped = {id(param) for each in self._known for param in parameters(each)} if self._before else set()
        for param, before in self._before:
            now = _state(param)
            if not _same(now, before):
                self._scaled[id(param)] = now, _sum(param) if id(param) in stepped else None
        self._before = []

    def check(self, optimizer: Optimizer) -> None:
        """Refuse a step of an optimizer that was not prepared, over gradients of scaled losses as these left them.

        Raises:
            StepOrderError: naming it.
        """
        self._known.add(optimizer)
        for param in parameters(optimizer) if self._scaled else ():
            state, total = self._scaled.get(id(param), (None, None))
            if state is not None and _same(state, _state(param)) and (total is None or _equal(total, _sum(param))):
                name = type(optimizer).__name__
                raise errors.StepOrderError(
                    f"{name}.step(): its gradients are those of a loss that amp.scale_loss scaled, and this {name} was "
                    "not prepared, so nothing unscales them: pass it and its model to amp.prepare, name it in "
                    "amp.scale_loss(loss, [optimizer, ...]), and call amp.step; or zero its gradients before a loss "
                    "that is not scaled"
                )


def _same(one: GradState, other: GradState) -> bool:
    if one is None or other is None:
        return one is other
    return one[0]() is other[0]() is not None and one[1] == other[1]


def _sum(param: torch.Tensor) -> torch.Tensor | None:
    return None if param.grad is None else local_part(param.grad.detach()).sum()


def _equal(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(one.nan_to_num(), other.nan_to_num())


def _state(param: torch.Tensor) -> GradState:
    """Return what changes when a gradient is added to or replaced."""
    return None if param.grad is None else (weakref.ref(param.grad), version_of(param.grad))
