"""Ranks that leave out ``amp.step``: the others would wait for ever, or go on with other weights.

A step communicates no more than its gradients, so ranks say in the store of ``torch.distributed`` that they have come
to steps 1, 2, 4, 8, … Each time a rank waits until the others have come half as far, which they have where all is well:
gradients are reduced with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unifiedamp.backend import errors

PATIENCE = timedelta(minutes=1)
"""How long a rank waits for others to come half as far."""


class StepCounts:
    """Refuses to go on where another rank makes fewer steps.

    Args:
        counts: every step is made by the host, which counts them.
    """

    def __init__(self, counts: bool) -> None:
        self._counts, self._count = counts, 0
        self._name = ""

    def note(self, name: str, ranks: Sequence[int]) -> None:
        """Note a step that is about to be made, by any optimizer.

        Args:
            name: of those that train together, which no others have; with another one, counts begin anew.
            ranks: their numbers; a rank alone looks for no others.

        Raises:
            StepOrderError: one has not made half as many.
        """
        if name != self._name:
            self._name, self._count = name, 0
        self._count += self._counts
        count = self._count
        if len(ranks) == 1 or count & (count - 1) or not count:
            return
        arrive(name, str(count))
        if count > 1:
            half = f"{count // 2} steps" if count > 2 else "one step"
            wait_for(name, str(count // 2), ranks, f"has come to step {count}, and", f"made {half}", PATIENCE)


def arrive(name: str, place: str) -> None:
    """Say that this rank has come to a place."""
    _store().set(_key(name, place, dist.get_rank()), "")


def wait_for(
    name: str, place: str, ranks: Sequence[int], here: str, there: str, limit: timedelta | None = None
) -> None:
    """Wait until others have come to a place; ``limit``: None for as long as the store waits.

    Raises:
        StepOrderError: one has not; ``here``, ``there``: what this rank does and what that one did not.
    """
    store, keys = _store(), {rank: _key(name, place, rank) for rank in ranks}
    try:
        store.wait(list(keys.values()), *([] if limit is None else [limit]))
    except RuntimeError:  # DistStoreError
        absent = [rank for rank, key in keys.items() if not store.check([key])]
        if not absent:
            raise
        raise errors.StepOrderError(
            f"amp.step: rank {dist.get_rank()} {here} rank {absent[0]} has not {there}: ranks that train together call "
            "amp.step(optimizer) equally often. Where one rank drops a step, call amp.skip_if(condition) on all ranks "
            "before amp.step(optimizer); ranks that train separate models need "
            "backend_options={'torch': {'process_group': False}}"
        ) from None


def _key(name: str, place: str, rank: int) -> str:
    return f"unifiedamp/steps/{name}/{place}/{rank}"


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
