"""Accumulation windows of ``fully_shard``: gradients stay whole on each rank until the window's last backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .wrapped import wrapped_by


class ShardWindows:
    """Sharded models whose backward passes reduce gradients, or add them up before the reduction.

    Args:
        models: those that train together.
    """

    def __init__(self, models: Iterable[torch.nn.Module] = ()) -> None:
        self._modules: list[Any] = wrapped_by(models, "FSDPModule")
        self._reduce = True

    def reduce_in_backward(self, enabled: bool) -> None:
        """Make the next backward passes reduce gradients, or not. Idempotent."""
        if enabled != self._reduce:
            for module in self._modules:
                module.set_requires_gradient_sync(enabled, recurse=False)
            self._reduce = enabled

    def drop(self, params: Iterable[torch.Tensor]) -> None:
        """Drop gradients that were added up and not reduced; torch has no call for it.

        Args:
            params: the sharded parameters whose gradients.
        """
        if not self._modules:
            return
        dropped = set(map(id, params))
        for held in _held(self._modules):
            if id(held.sharded_param) in dropped:
                held.unsharded_accumulated_grad = None
                if hasattr(held, "_unsharded_param"):  # after the first all-gather
                    held._unsharded_param.grad = None


def sharded_parameters(models: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """Yield what ``fully_shard`` keeps of each parameter."""
    return _held(wrapped_by(models, "FSDPModule"))


def _held(modules: Iterable[Any]) -> Iterator[Any]:
    from torch.distributed.fsdp import fully_shard

    for module in modules:
        state: Any = fully_shard.state(module)  # type: ignore[attr-defined]  # added by a decorator
        groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.12 and later have several
        for group in [state._fsdp_param_group] if groups is None else groups:
            yield from group.fsdp_params if group is not None else ()
