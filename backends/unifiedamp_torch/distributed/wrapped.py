"""Models that ``torch.distributed`` holds: ``DistributedDataParallel``, FSDP and DTensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

AVAILABLE = dist.is_available()
"""Whether torch was built with distributed training."""

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def joined() -> bool:
    """Return whether this process has joined others, so that there may be DTensors."""
    return AVAILABLE and dist.is_initialized()


def world_size() -> int:
    """Return how many processes there are."""
    return dist.get_world_size() if joined() else 1


def is_wrapped(model: torch.nn.Module) -> bool:
    """Return whether ``torch.distributed`` holds gradients or parameters of a model (DDP, FSDP), or of a part of it."""
    return any(_wrapper(module) for module in model.modules())


def _wrapper(module: torch.nn.Module) -> str:
    """Return the name of torch's class that wraps or shards a module; empty for none."""
    names = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
    return next((name for name in names if name in _WRAPPERS), "")


def wrapped_by(models: Iterable[torch.nn.Module], wrapper: str) -> list[torch.nn.Module]:
    """Return the modules that a class of torch's, by its name, wraps or shards."""
    return [module for model in models for module in model.modules() if _wrapper(module) == wrapper]


def replicated(models: Iterable[torch.nn.Module]) -> Iterator[DistributedDataParallel]:
    """Yield the models, and parts of models, in ``DistributedDataParallel``."""
    for module in wrapped_by(models, "DistributedDataParallel"):
        if isinstance(module, DistributedDataParallel):
            yield module


def called(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module that ``DistributedDataParallel`` calls, so that it casts alike when it is called by itself (to
    evaluate); the model itself, if nothing wraps it.
    """
    return model.module if isinstance(model, DistributedDataParallel) else model


def is_joining(model: DistributedDataParallel) -> bool:
    """Return whether a model is inside ``torch.distributed.algorithms.Join``, where ranks may run out of inputs."""
    return bool(getattr(vars(model).get("_join_config"), "enable", False))


def reduced_parameters(model: DistributedDataParallel) -> Iterator[torch.Tensor]:
    """Yield the parameters whose gradients a model reduces: those that train, but for the ones it is told to ignore."""
    ignored = model.parameters_to_ignore
    yield from (each for name, each in model.module.named_parameters() if each.requires_grad and name not in ignored)


def unreduced(models: Iterable[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters that came into models of several ranks after they were wrapped, by name."""
    wrapped = [each for each in replicated(models) if dist.get_world_size(each.process_group) > 1]
    known = {id(param) for each in wrapped for param in each._module_parameters}
    for each in wrapped:
        for name, param in each.module.named_parameters():
            if name not in each.parameters_to_ignore and id(param) not in known:
                yield name, param


def is_shared(model: torch.nn.Module) -> bool:
    """Return whether several ranks hold a model together: it is wrapped, or has DTensors."""
    return is_wrapped(model) or any(mesh_of(param) is not None for param in model.parameters())


def sharded(models: Iterable[torch.nn.Module]) -> bool:
    """Return whether some parameters are sharded."""
    models = list(models)
    return bool(wrapped_by(models, "FullyShardedDataParallel") or wrapped_by(models, "FSDPModule"))


def casting(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the outermost modules that FSDP2 casts: those sharded by ``fully_shard(mp_policy=...)``."""
    found: list[torch.nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) not in inside and _casts(module):
            found.append(module)
            inside.update(map(id, module.modules()))
    return found


def _casts(module: torch.nn.Module) -> bool:
    policy = _sharding_policy(module) if _wrapper(module) == "FSDPModule" else None
    return policy is not None and policy.param_dtype is not None


def _sharding_policy(module: torch.nn.Module) -> Any:
    from torch.distributed.fsdp import fully_shard

    state: Any = fully_shard.state(module)  # type: ignore[attr-defined]  # added by a decorator
    return vars(state).get("_mp_policy")


def sharding_policies(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Any]]:
    """Yield the modules that ``fully_shard`` shards, and the ``MixedPrecisionPolicy`` of each."""
    for module in wrapped_by([model], "FSDPModule"):
        policy = _sharding_policy(module)
        if policy is not None:
            yield module, policy


def mesh_of(param: torch.Tensor) -> Any:
    """Return the device mesh of a DTensor; None for a plain tensor."""
    return getattr(param, "device_mesh", None)


def groups_of(models: Iterable[torch.nn.Module]) -> list[Any]:
    """Return the process groups of more than one rank that hold models together, each once, in the same order on
    every rank.
    """
    models = list(models)
    groups = [module.process_group for module in replicated(models)]
    meshes = dict.fromkeys(mesh for model in models for each in model.parameters() if (mesh := mesh_of(each)))
    groups += [group for mesh in meshes for group in mesh.get_all_groups()]
    unique = {id(group): group for group in groups}
    return [group for group in unique.values() if dist.get_world_size(group) > 1]


def why_shared(models: Iterable[torch.nn.Module]) -> str:
    """Return why several processes share a step; empty where they do not."""
    if world_size() > 1:
        return f"{world_size()} processes train together"
    wrapped = [type(model).__name__ for model in models if is_wrapped(model)]
    return f"torch.distributed holds the gradients of {wrapped[0]}" if wrapped else ""
