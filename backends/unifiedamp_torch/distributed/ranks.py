"""The ranks that train together, and what they decide together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .wrapped import groups_of, reduced_parameters, replicated, world_size

NamedGroup = Any
"""``backend_options.torch.process_group``: a ``torch.distributed.ProcessGroup``, False for this rank alone, or None."""


class TrainingRanks:
    """The ranks whose steps are applied or skipped together.

    Args:
        named: the process group that the user named; None follows the models: the group of
            ``DistributedDataParallel``, the device meshes of DTensors, and else all ranks.
    """

    def __init__(self, named: NamedGroup = None) -> None:
        self._named = named
        self._groups: list[Any] | None = None
        self._copies: list[DistributedDataParallel] = []
        self._reduced: set[int] = set()
        self._alike: dict[int, tuple[int, bool]] = {}

    def follow(self, models: Iterable[torch.nn.Module]) -> None:
        """Train together with the ranks that hold parts or copies of these models."""
        models = list(models)
        self._copies = list(replicated(models))
        if self._named is None:
            self._groups = groups_of(models) or None
            self._reduced = {id(param) for each in self._copies for param in reduced_parameters(each)}
        self._alike.clear()

    @property
    def groups(self) -> list[Any]:
        """The process groups of more than one rank; None stands for all ranks. Empty where this rank trains alone."""
        if world_size() == 1 or self._named is False:
            return []
        if self._named is not None:
            return [self._named]
        return [None] if self._groups is None else self._groups

    def together(self, scaled: bool) -> bool:
        """Return whether ranks train one model.

        Args:
            scaled: they share a loss scale, and decide together whatever they train.
        """
        return bool(self.groups) and (scaled or self._groups is not None or self._named is not None)

    def reduce_in_backward(self, enabled: bool) -> None:
        """Make the next forward passes of ``DistributedDataParallel`` reduce gradients in their backward, or not.

        What its ``no_sync`` does. A model with a static graph always reduces: torch counts its backward passes.
        """
        for model in self._copies:
            model.require_backward_grad_sync = enabled or model.static_graph

    def have_alike(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether ``DistributedDataParallel`` gives all these ranks the same gradients of all parameters of an
        optimizer, so that they find the same without asking.
        """
        count = sum([len(group["params"]) for group in optimizer.param_groups])
        known = self._alike.get(id(optimizer))
        if known is None or known[0] != count:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            alike = len(self.groups) == 1 and all(id(param) in self._reduced for param in params)
            known = self._alike[id(optimizer)] = (count, alike)
        return known[1]

    def reduce(self, tensor: torch.Tensor, operation: Literal["max", "sum"] = "max") -> None:
        """Reduce a tensor over all these ranks, in place."""
        for group in self.groups:
            reduce_over(tensor, operation, group)


def reduce_over(tensor: torch.Tensor, operation: Literal["max", "sum"], group: Any) -> None:
    """Reduce a tensor over a process group in place, also where the group's backend has no such device."""
    if dist.get_world_size(group) == 1:
        return
    kind = dist.ReduceOp.MAX if operation == "max" else dist.ReduceOp.SUM
    device = _device_for(tensor.device, group)
    if device == tensor.device:
        dist.all_reduce(tensor, kind, group)
        return
    moved = tensor.to(device)
    dist.all_reduce(moved, kind, group)
    tensor.copy_(moved)


def _device_for(device: torch.device, group: Any) -> torch.device:
    """Return a device that the group communicates on: this one if it does, as NCCL does not for a CPU."""
    kinds = [each.partition(":")[0] for each in str(dist.get_backend_config(group)).split(",")]
    if device.type in kinds or not kinds:
        return device
    return torch.device(kinds[0])
