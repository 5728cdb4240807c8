"""The ranks that train together, and what they decide together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from unifiedamp.backend import errors

from .local_passes import LocalPasses
from .reduction import gives_ranks_the_same, refuse_feedback
from .shard_windows import ShardWindows
from .wrapped import groups_of, is_joining, reduced_parameters, replicated, world_size

NamedGroup = Any
"""``backend_options.torch.process_group``: a ``torch.distributed.ProcessGroup``, False for this rank alone, or None."""


class TrainingRanks:
    """The ranks whose steps are applied or skipped together.

    Args:
        named: the process group that the user named; None follows the models: the group of
            ``DistributedDataParallel``, the device meshes of DTensors, and else all ranks.

        shards_wait: see there.

    Attributes:
        named: as given.
        local_passes: backward passes whose gradients were not reduced.
        shards_wait: whether sharded models reduce once per window too. Their gradients are whole until then, so those
            of one optimizer cannot be told from another's, and captured graphs do not hold them.
    """

    def __init__(self, named: NamedGroup = None, shards_wait: bool = True) -> None:
        self.named, self.shards_wait = named, shards_wait
        self.local_passes = LocalPasses()
        self._groups: list[Any] | None = None
        self._copies: list[DistributedDataParallel] = []
        self._reduced: set[int] = set()
        self._windows = ShardWindows()
        self._alike: dict[int, tuple[int, bool]] = {}

    def follow(self, models: Iterable[torch.nn.Module]) -> None:
        """Train together with the ranks that hold parts or copies of these models."""
        models = list(models)
        self._copies = list(replicated(models))
        self._windows.reduce_in_backward(True)
        self._windows = ShardWindows(models)
        if self.named is None:
            self._groups = groups_of(models) or None
            self._reduced = {id(param) for each in self._copies for param in reduced_parameters(each)}
        self._alike.clear()

    @property
    def groups(self) -> list[Any]:
        """The process groups of more than one rank; None stands for all ranks. Empty where this rank trains alone."""
        if world_size() == 1 or self.named is False:
            return []
        if self.named is not None:
            return [self.named]
        return [None] if self._groups is None else self._groups

    def together(self, scaled: bool) -> bool:
        """Return whether ranks train one model.

        Args:
            scaled: they share a loss scale, and decide together whatever they train.
        """
        return bool(self.groups) and (scaled or self._groups is not None or self.named is not None)

    def reduce_in_backward(self, enabled: bool) -> None:
        """Make the backward passes of the next forward passes reduce gradients, or not.

        What ``DistributedDataParallel.no_sync`` and ``set_requires_gradient_sync`` of ``fully_shard`` do. A model with
        a static graph always reduces: torch counts its backward passes.
        """
        for model in self._copies:
            model.require_backward_grad_sync = enabled or model.static_graph
        self._windows.reduce_in_backward(enabled or not self.shards_wait)

    def drop_unreduced(self, params: Iterable[torch.Tensor]) -> None:
        """Drop what sharded parameters have of a window that is not reduced yet."""
        self._windows.drop(params)

    def have_alike(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether ``DistributedDataParallel`` gives all these ranks the same gradients of all parameters of an
        optimizer, so that they find the same without asking.

        Raises:
            UnsupportedError: a comm hook keeps parts of scaled gradients.
        """
        count = sum([len(group["params"]) for group in optimizer.param_groups])
        known = self._alike.get(id(optimizer))
        if known is None or known[0] != count:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            alike = len(self.groups) == 1 and all(id(param) in self._reduced for param in params)
            known = self._alike[id(optimizer)] = (count, alike)
        for model in self._copies:
            refuse_feedback(model)  # of hooks that came after prepare
        return known[1] and all(map(gives_ranks_the_same, self._copies))

    @property
    def joining(self) -> bool:
        """Whether a model is in ``Join``, where ranks that have run out of inputs make no steps."""
        return any(map(is_joining, self._copies))

    def refuse_joining(self, why: str, instead: str = "") -> None:
        """Refuse a step in ``Join``, where a rank that has run out of inputs makes none.

        Args:
            why: that is a fault, for the message.
            instead: what else helps, for the message.

        Raises:
            UnsupportedError: a model is in ``Join``.
        """
        if self.joining:
            raise errors.UnsupportedError(
                "amp.step: DistributedDataParallel is in torch's Join, where a rank that has run out of inputs makes "
                f"no steps, and {why}; give all ranks equally many batches{instead}"
            )

    def reduce(self, tensor: torch.Tensor, operation: Literal["max", "sum"] = "max") -> None:
        """Reduce a tensor over all these ranks, in place."""
        self.refuse_joining("would not answer the ranks that ask for its decision (amp.skip_if, a comm hook)")
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
    kinds = _libraries(group)
    if device.type in kinds or not kinds:
        return device
    return torch.device(next(iter(kinds)))


def library_of(group: Any, device_type: str) -> str:
    """Return the library by which a process group communicates for a kind of device: "nccl", "gloo"; empty for none."""
    return _libraries(group).get(device_type, "")


def _libraries(group: Any) -> dict[str, str]:
    pairs = [each.partition(":") for each in str(dist.get_backend_config(group)).split(",")]
    return {kind: library for kind, _, library in pairs}
