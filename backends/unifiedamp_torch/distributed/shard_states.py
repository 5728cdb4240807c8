"""Optimizer states of other shards than the parameters': saved by another number of ranks, and not resharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import errors

from .wrapped import mesh_of

ELEMENTWISE = frozenset(
    {
        "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta",
        "sum", "mu", "nu", "prev", "step_size", "ax",
    }
)  # fmt: skip
"""States of ``torch.optim`` that have a value for each value of the parameter."""


def refuse_other_shards(optimizers: Sequence[torch.optim.Optimizer]) -> list[Callable[[], None]]:
    """Refuse, before it changes anything, ``load_state_dict`` of a state that holds another rank's shards.

    torch loads such states, and fails in the next step.

    Returns:
        What takes the checks off again.
    """
    return [each.register_load_state_dict_pre_hook(_check).remove for each in optimizers]


def _check(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    for param, name, saved in _states(optimizer, state_dict):
        whole = mesh_of(saved) is not None or mesh_of(param) is None
        if whole and saved.shape == param.shape:
            continue
        here = "" if mesh_of(param) is None else f", sharded over {mesh_of(param).size()} ranks"
        raise errors.CheckpointError(
            f"{type(optimizer).__name__}.load_state_dict: {name!r} has shape {tuple(saved.shape)} and is of a "
            f"parameter of shape {tuple(param.shape)}{here}: it is of another model, or a shard that another number of "
            "ranks saved, or was gathered. Nothing was loaded. Save and load shards with torch.distributed.checkpoint "
            "and get_optimizer_state_dict, set_optimizer_state_dict, which reshard"
        )


def _states(
    optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]
) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
    """Yield parameters with each of their saved elementwise states; torch checks that the groups fit."""
    for group, saved in zip(optimizer.param_groups, state_dict.get("param_groups", ()), strict=False):
        for param, key in zip(group["params"], saved.get("params", ()), strict=False):
            found = state_dict.get("state", {}).get(key, {})
            for name, value in found.items() if isinstance(found, Mapping) else ():
                if name in ELEMENTWISE and isinstance(value, torch.Tensor) and value.dim() and param.dim():
                    yield param, name, value
