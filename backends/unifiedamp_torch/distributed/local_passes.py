"""Backward passes inside ``DistributedDataParallel.no_sync()``, whose gradients no later one reduced: a step of them
would give each rank other weights.

A forward pass outside of it lets the next backward pass reduce all that was added since, so the forward passes tell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from unifiedamp.backend import errors

from .wrapped import replicated


class Reductions:
    """What a model in ``DistributedDataParallel`` reduces.

    Attributes:
        model: the model.
        due: the next backward pass reduces.
        local: there are gradients that were not reduced.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.due = self.local = False

    def after_forward(self, _module: Any, _args: Any, output: Any) -> None:
        """Follow a forward pass; a forward hook."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self.model.require_backward_grad_sync:
            self.due, self.local = True, False
            return
        for each in tree_leaves(output):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                each.register_hook(self._in_backward)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _in_backward(self, _grad: torch.Tensor) -> None:
        if not self.due and any(map(accumulates, self.model.parameters())):
            self.local = True


class LocalPasses:
    """Refuses steps of gradients that were not reduced over the ranks."""

    def __init__(self) -> None:
        self._all: list[Reductions] = []

    def follow(self, models: Iterable[torch.nn.Module]) -> list[Callable[[], None]]:
        """Follow the passes of further models; return what ends that."""
        several = [each for each in replicated(models) if dist.get_world_size(each.process_group) > 1]
        return [undo for model in several for undo in self._follow(Reductions(model))]

    def _follow(self, reductions: Reductions) -> list[Callable[[], None]]:
        self._all.append(reductions)
        hook = reductions.model.register_forward_hook(reductions.after_forward)
        return [hook.remove, functools.partial(self._all.remove, reductions)]

    def end_backward(self) -> None:
        """Note the end of a backward pass of the session."""
        for each in self._all:
            each.due = False

    def check(self, params: Iterable[torch.Tensor], call: str) -> None:
        """Refuse to use gradients of parameters that were not reduced.

        Raises:
            StepOrderError: naming the model.
        """
        for each in self._local(params):
            raise errors.StepOrderError(
                f"{call}: the last forward pass of {type(each.model.module).__name__} ran inside no_sync() of its "
                "DistributedDataParallel, so these gradients were not reduced and each rank would apply its own: leave "
                "no_sync() for the last micro-batch of a step, or leave it out and give the session accumulate_steps, "
                "which reduces once per window"
            )

    def forget(self, params: Iterable[torch.Tensor]) -> None:
        """Note that the gradients of parameters are dropped."""
        for each in self._local(params):
            each.local = False

    def _local(self, params: Iterable[torch.Tensor]) -> Iterator[Reductions]:
        found = [each for each in self._all if each.local]
        held = {id(param) for param in params} if found else set()
        yield from (each for each in found if any(id(param) in held for param in each.model.parameters()))


def accumulates(param: torch.Tensor) -> bool:
    """Return whether the running backward pass adds to ``param.grad``; ``torch.autograd.grad`` does not."""
    if not param.requires_grad:
        return False
    if hasattr(param, "to_local"):
        return True  # FSDP differentiates other tensors in its place
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(param).node))
    except RuntimeError:
        return False
