"""Models and steps that several processes share."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..training.scaler import world_size

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def is_spread(model: torch.nn.Module) -> bool:
    """Tell whether torch.distributed holds a model's gradients or parameters (DDP, FSDP), at its top or inside."""
    return any(
        kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch.")
        for module in model.modules()
        for kind in type(module).__mro__
    )


def why_spread(models: Iterable[torch.nn.Module]) -> str:
    """Return why a step is shared by several processes; empty where it is not."""
    if world_size() > 1:
        return f"{world_size()} processes train together"
    spread = [type(model).__name__ for model in models if is_spread(model)]
    return f"torch.distributed holds the gradients of {spread[0]}" if spread else ""
