"""What sessions of ranks that train together must share, and how ranks that exchange numbers alone compare it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from ..errors import PrepareError
from .spec import SessionSpec


def settings_of(spec: SessionSpec) -> dict[str, str]:
    """Return what must be equal on all ranks, by the name of the session's argument."""
    return {
        "loss_scale": str(spec.loss_scale),
        "policy": str(spec.policy),
        "schedule": str(spec.schedule),
        "accumulate_steps": str(spec.accumulate_steps),
        "master_weights": str(spec.master_weights),
        "reduce_dtype": str(spec.reduce_dtype),
    }


def checksums(settings: Mapping[str, str]) -> list[int]:
    """Return a number below 2**32 for each setting, which frameworks that sum numbers can exchange."""
    return [zlib.crc32(value.encode()) for value in settings.values()]


def refuse_differing(settings: Mapping[str, str], found: Iterable[Sequence[float]], call: str, rank: str) -> None:
    """Refuse settings that differ between ranks.

    Args:
        settings: this rank's.
        found: the :func:`checksums` of each rank, in the order of ranks.
        call: what the message begins with.
        rank: what the framework calls a rank ("worker").

    Raises:
        PrepareError: naming the first setting that differs, and the ranks.
    """
    first, *others = found
    for place, (name, value) in enumerate(settings.items()):
        for number, each in enumerate(others, 1):
            if each[place] != first[place]:
                raise PrepareError(
                    f"{call}: {rank}s that train together need the same settings, and {name} differs between {rank} 0 "
                    f"and {rank} {number}; here it is {value}. Make the sessions of all {rank}s alike"
                )
