"""Messages about recorded steps, through the store of ``torch.distributed``.

They use no collective: ranks may record different steps, or end early, without a deadlock.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .ranks import TrainingRanks

_recordings = itertools.count()


class StoreMessages:
    """See ``unifiedamp.backend.recording.RankMessages``.

    Args:
        rank: of this process.
        ranks: those that record together.
    """

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self.rank, self.ranks = rank, ranks
        # Ranks start recordings in the same order; torchrun's store outlives processes that it starts anew.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._prefix = f"unifiedamp/recorded/{restarts}/{ranks[0]}-{len(ranks)}/{next(_recordings)}"
        self._store: Any = dist.distributed_c10d._get_default_store()
        if rank == ranks[0]:
            self._store.set(f"{self._prefix}/begun", "")

    def _key(self, step: int, rank: int) -> str:
        return f"{self._prefix}/{step}/{rank}"

    def _keys(self, step: int) -> dict[int, str]:
        return {rank: self._key(step, rank) for rank in self.ranks if rank != self.rank}

    def received(self) -> bool:
        return bool(self._store.check([f"{self._prefix}/begun"]))

    def post(self, step: int, text: str) -> None:
        self._store.set(self._key(step, self.rank), text)

    def ready(self, step: int, seconds: float) -> bool:
        keys = list(self._keys(step).values())
        if seconds and not self._store.check(keys):
            try:
                self._store.wait(keys, timedelta(seconds=seconds))
            except RuntimeError:  # DistStoreError where time is over, DistNetworkError where the store has gone
                return False
        return bool(self._store.check(keys))

    def take(self, step: int) -> Mapping[int, str]:
        found = {}
        for rank, key in self._keys(step).items():
            if self._store.check([key]):
                found[rank] = self._store.get(key).decode()
                self._store.delete_key(key)
        return found


def store_messages(ranks: TrainingRanks) -> StoreMessages | None:
    """Return the messages of the ranks that train together; None for a rank alone."""
    members = {each for group in ranks.groups for each in dist.get_process_group_ranks(group or dist.group.WORLD)}
    return StoreMessages(dist.get_rank(), sorted(members)) if len(members) > 1 else None
