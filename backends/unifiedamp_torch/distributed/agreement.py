"""Settings that ranks which train together must share, compared once when a shared model is prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from unifiedamp.backend import SessionSpec, errors

from .ranks import TrainingRanks


def settings_of(spec: SessionSpec) -> dict[str, str]:
    """Return what must be equal on all ranks, by the name of the session's argument."""
    return {
        "loss_scale": str(spec.loss_scale),
        "policy": str(spec.policy),
        "accumulate_steps": str(spec.accumulate_steps),
        "master_weights": str(spec.master_weights),
        "reduce_dtype": str(spec.reduce_dtype),
    }


def check_agreement(ranks: TrainingRanks, spec: SessionSpec, scale: float) -> None:
    """Refuse settings that differ between ranks; communicates once over each of their groups.

    Args:
        ranks: those that train together.
        spec: the session's.
        scale: the present loss scale, which a checkpoint may have set.

    Raises:
        PrepareError: on every rank of a group, naming the setting, the ranks and their values.
    """
    own = {**settings_of(spec), "the present loss scale": f"{scale:g}"}
    for group in ranks.groups:
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, own, group)
        _compare(found, dist.get_process_group_ranks(group or dist.group.WORLD))


def _compare(found: Sequence[Mapping[str, str]], ranks: Sequence[int]) -> None:
    first = found[0]
    for name in first:
        for rank, settings in zip(ranks, found, strict=True):
            if settings.get(name) != first[name]:
                raise errors.PrepareError(
                    f"amp.prepare: ranks that train together need the same settings, and {name} is {first[name]} on "
                    f"rank {ranks[0]} and {settings.get(name)} on rank {rank}; make the sessions alike, or name those "
                    "that train together in backend_options={'torch': {'process_group': ...}}"
                )
