"""The model that the kit trains on several ranks, in each way that torch has of sharing one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from unifiedamp.conformance.ranks import Array, RankKind

# Compiled steps of several processes on CPUs run as they are written, whatever wraps the model.
_ON_DEVICE = ("eager-on-device",)
_COMPILED = ("compiled",)
KINDS: Mapping[str, RankKind] = {
    "ddp": RankKind(loads_alone=True, absent="some", quick=True),
    "fsdp2": RankKind(loads_alone=True),
    "hsdp": RankKind(loads_alone=True, counts=(4,), other_forms=_COMPILED),
    "tensor parallel": RankKind(shared_by=4),
    "fsdp2 + tensor parallel": RankKind(counts=(4,), shared_by=2, other_forms=_COMPILED),
    "plain beside dtensors": RankKind(own=frozenset({1})),
    "cpu offload": RankKind(other_forms=_COMPILED),
    "unwrapped": RankKind(loads_alone=True, own=frozenset({0, 1, 2}), absent="any", other_forms=_ON_DEVICE, quick=True),
}
"""Name → a way of sharing a model. No rank of FSDP2's may leave out what the others gather and reduce."""


class Part(nn.Module):
    """``sum(w * x)`` of one parameter."""

    def __init__(self, values: Array) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scalar."""
        return torch.sum(self.weight * x)


class RankModel(nn.Module):
    """The sum over its parts, but for those whose row is None."""

    def __init__(self, weights: Sequence[Array]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(Part, weights))

    def forward(self, rows: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the scalar; 0 of no rows."""
        terms = [part(row) for part, row in zip(self.parts, rows, strict=True) if row is not None]
        return torch.stack(terms).sum() if terms else torch.zeros((), requires_grad=True)


def shared(kind: str, model: RankModel, leaves_out: bool) -> nn.Module:
    """Return the model as its ranks hold it; ``leaves_out`` says that some losses leave parameters out."""
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=leaves_out)
    if kind != "unwrapped":
        _SHARE[kind](model)
    return model


@functools.cache
def _mesh(*sizes: int) -> Any:
    shape = sizes or (dist.get_world_size(),)
    names = ("outer", "inner") if len(shape) == 2 else ("all",)
    return dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)


def _fully(modules: Sequence[nn.Module], mesh: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for module in modules:
        fully_shard(module, mesh=mesh, **options)


def _offloaded(model: RankModel) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    _fully([*model.parts, model], _mesh(), offload_policy=CPUOffloadPolicy(pin_memory=False))


def _tensor_parallel(model: RankModel, mesh: Any) -> None:
    """Cut the first parameter over the mesh; each rank has the second one whole, and a part of its gradient's sum."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    def given(_module: nn.Module, inputs: Any, mesh: Any) -> Any:
        return (distribute_tensor(inputs[0], mesh, [Shard(0)]),)

    def returned(_module: nn.Module, output: Any, mesh: Any) -> Any:
        assert isinstance(output, DTensor)
        return output.redistribute(mesh, [Replicate()]).to_local().clone()

    for part, placement in zip(model.parts, (Shard(0), Replicate()), strict=False):
        whole: torch.Tensor = part.get_parameter("weight").detach()
        part.register_parameter("weight", nn.Parameter(distribute_tensor(whole, mesh, [placement])))
        distribute_module(part, mesh, None, given, returned)


def _both(model: RankModel) -> None:
    mesh = _mesh(2, 2)
    _tensor_parallel(model, mesh["inner"])
    _fully([*model.parts, model], mesh["outer"])


_SHARE: Mapping[str, Callable[[RankModel], None]] = {
    "fsdp2": lambda model: _fully([*model.parts, model], _mesh()),
    "hsdp": lambda model: _fully([*model.parts, model], _mesh(2, 2)),
    "tensor parallel": lambda model: _tensor_parallel(model, _mesh()),
    "fsdp2 + tensor parallel": _both,
    "plain beside dtensors": lambda model: _fully([model.parts[0], model.parts[2]], _mesh()),
    "cpu offload": _offloaded,
}
