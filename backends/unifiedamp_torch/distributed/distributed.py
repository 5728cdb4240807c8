"""The role of ranks that decide alike, and models that ``torch.distributed`` holds."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from unifiedamp.backend import Distributed, Unsupported

AVAILABLE = dist.is_available()
"""Whether torch was built with distributed training."""

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


class TorchDistributed(Distributed):
    """Ranks of ``torch.distributed``: the scaler all-reduces what it finds, so that all ranks skip together."""

    means = "found_inf is all-reduced over torch.distributed"


def distributed_here() -> TorchDistributed | Unsupported:
    """Return the role."""
    return TorchDistributed() if AVAILABLE else Unsupported("built without distributed")


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if AVAILABLE and dist.is_initialized() else 1


def is_wrapped(model: torch.nn.Module) -> bool:
    """Return whether ``torch.distributed`` holds gradients or parameters of a model (DDP, FSDP), or of a part of it."""
    return any(
        kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch.")
        for module in model.modules()
        for kind in type(module).__mro__
    )


def why_shared(models: Iterable[torch.nn.Module]) -> str:
    """Return why several processes share a step; empty where they do not."""
    if world_size() > 1:
        return f"{world_size()} processes train together"
    wrapped = [type(model).__name__ for model in models if is_wrapped(model)]
    return f"torch.distributed holds the gradients of {wrapped[0]}" if wrapped else ""
