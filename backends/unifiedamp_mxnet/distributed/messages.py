"""Messages about recorded steps between the workers of a distributed kvstore, as numbers: it carries nothing else.

A kvstore adds up what all workers send, so they send messages about a step that all of them record, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import errors

from .._types import Trainer
from .distributed import connect, is_distributed, kvstore_name
from .workers import WorkerNumbers

BYTES = 6
"""Of a text in one number; ``WorkerNumbers`` keeps the bits of two float32."""


class WorkerMessages:
    """See ``unifiedamp.backend.recording.RankMessages``; ranks are those of workers.

    Args:
        numbers: gathers them.
        rank: of this worker.
        count: of workers.

    Attributes:
        all_record: whether all workers record the present step.
    """

    def __init__(self, numbers: WorkerNumbers, rank: int, count: int) -> None:
        self._numbers, self.rank = numbers, rank
        self.ranks: Sequence[int] = range(count)
        self.all_record = self._received = False
        self._came: dict[int, Mapping[int, str]] = {}
        self._asked: set[int] = set()

    def received(self) -> bool:
        return self._received

    def post(self, step: int, text: str) -> None:
        if self.all_record:
            self._exchange(text)
            self._received = True

    def ready(self, step: int, seconds: float) -> bool:
        if step not in self._asked:  # else what others sent, or that they did not, is known
            self._asked.add(step)
            if self.all_record:
                self._came[step] = self._exchange("")
        return step in self._came

    def take(self, step: int) -> Mapping[int, str]:
        return self._came.pop(step, {})

    def _exchange(self, text: str) -> Mapping[int, str]:
        """Send a text; return those of the workers that sent one. All workers call it."""
        own = text.encode()
        sizes = [int(size) for size in self._numbers.gather([len(own)])[:, 0]]
        places = 1 << (-(-max(sizes) // BYTES) - 1).bit_length()  # few lengths, each of which is a key of the kvstore
        rows = self._numbers.gather(_packed(own, places))
        return {rank: _unpacked(rows[rank])[:size].decode() for rank, size in enumerate(sizes) if size}


def store_of_workers(trainers: Iterable[Trainer]) -> Any:
    """Return the kvstore of several workers, which is made where no step has made it; None without one.

    Raises:
        StepOrderError: a parameter has no shape, so it cannot be made yet.
    """
    for trainer in filter(is_distributed, trainers):
        if not trainer._kv_initialized and any(param._deferred_init for param in trainer._params):
            raise errors.StepOrderError(
                f"amp.record: the workers of kvstore {kvstore_name(trainer)!r} meet when it is made, and parameters of "
                "the model have no shape before its first batch; give in_units or in_channels, or call the model once "
                "before amp.record"
            )
        if connect(trainer) and trainer._kvstore.num_workers > 1:
            return trainer._kvstore
    return None


def _packed(text: bytes, places: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    values = np.zeros((places, 8), np.uint8)
    values[:, :BYTES] = np.frombuffer(text.ljust(places * BYTES, b"\0"), np.uint8).reshape(places, BYTES)
    return values.view("<i8")[:, 0].astype(np.float64)


def _unpacked(numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bytes:
    return numbers.astype("<i8")[:, None].view(np.uint8)[:, :BYTES].tobytes()
