"""Models that are wrapped or sharded after they were prepared: the session would follow other parameters or ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from unifiedamp.backend import errors

from .wrapped import is_shared, sharded, world_size


def refuse_late_sharding(models: list[torch.nn.Module], known: Callable[[torch.Tensor], bool]) -> None:
    """Refuse models whose parameters were exchanged by ``fully_shard`` since they were prepared.

    Args:
        models: the prepared ones.
        known: whether a parameter was there when they were prepared.

    Raises:
        PrepareError: one was sharded.
    """
    for model in models:
        if sharded([model]) and not all(map(known, model.parameters())):
            raise errors.PrepareError(
                f"amp.step: {type(model).__name__} was sharded by fully_shard after amp.prepare, so the optimizer "
                "trains parameters that the model no longer has; call fully_shard(model, mp_policy=amp.mp_policy()), "
                "make the optimizer from the sharded parameters, and prepare both then"
            )


def refuse_late_wrapper(model: torch.nn.Module) -> list[Callable[[], None]]:
    """Refuse ``DistributedDataParallel`` around a model that is prepared without it, when it is called.

    Returns:
        What takes the check off again; nothing for a model that several ranks hold already, or a process alone.
    """
    if world_size() == 1 or is_shared(model):
        return []

    def check(module: torch.nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)  # of the forward pass in progress
        if wrapper is not None and wrapper.module is module:
            raise errors.PrepareError(
                f"amp.prepare: DistributedDataParallel was put around {type(module).__name__} after it was prepared, "
                "so the session knows neither its process group nor when it reduces; prepare the wrapped model: "
                "amp.prepare(DistributedDataParallel(model), optimizer)"
            )

    return [model.register_forward_pre_hook(check).remove]
