"""A window that is discarded must be discarded by all ranks: they meet in the store of ``torch.distributed``.

No rank asks for a decision where it discards a window, and the others may be anywhere else by then, so a collective
would pair with one of theirs. Keys of the store pair with nothing.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from unifiedamp.backend import errors

from .ranks import TrainingRanks


def meet_to_discard(ranks: TrainingRanks, place: int) -> None:
    """Wait until all ranks discard the window of an optimizer, at most for the time limit of their store.

    Args:
        ranks: those that train together.
        place: the optimizer's among the prepared ones.

    Raises:
        StepOrderError: one does not.
    """
    for group in ranks.groups:
        _meet(dist.get_process_group_ranks(group or dist.group.WORLD), place)


def _meet(ranks: list[int], place: int) -> None:
    """Meet those whose count of discarded windows is the same, over all sessions."""
    store, own = _store(), dist.get_rank()
    name = f"unifiedamp/discarded/{hash(tuple(ranks))}/{place}"
    count = store.add(f"{name}/{own}", 1)
    keys = {rank: f"{name}/{rank}/{count}" for rank in ranks}
    store.set(keys[own], "")
    try:
        store.wait(list(keys.values()))
    except RuntimeError:
        absent = [rank for rank, key in keys.items() if not store.check([key])]
        store.delete_key(keys[own])
        store.add(f"{name}/{own}", -1)
        if not absent:
            raise
        raise _alone(own, absent) from None
    store.delete_key(f"{name}/{own}/{count - 1}")  # all have left that meeting: they are in this one


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _alone(own: int, absent: list[int]) -> errors.StepOrderError:
    others = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {errors.first_names(map(str, absent))}"
    return errors.StepOrderError(
        f"amp.discard_step: rank {own} discards a window that {others} did not discard, and would go on with other "
        "weights; nothing was dropped. Where one rank decides for all, call amp.skip_if(condition) on all ranks before "
        "amp.step(optimizer). Ranks that train separate models need backend_options={'torch': {'process_group': False}}"
    )
