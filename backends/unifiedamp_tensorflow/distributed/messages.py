"""Messages about recorded steps, through the values that workers of a ``MultiWorkerMirroredStrategy`` share.

TensorFlow's coordination service, in the first worker, holds them. They use no collective: workers may record different
steps, or end early, without a deadlock.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..internals import shared_values

MISSING = (tf.errors.DeadlineExceededError, tf.errors.NotFoundError)
GONE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What is raised once the process of the first worker has ended."""
ANSWER = 1.0
"""Seconds for which a worker waits for what the first one has noted before."""
_recordings = itertools.count()


class WorkerMessages:
    """See ``unifiedamp.backend.recording.RankMessages``; ranks are those of workers.

    Args:
        rank: of this worker.
        count: of workers.
        values: what they share.
    """

    def __init__(self, rank: int, count: int, values: Any) -> None:
        self.rank, self._values = rank, values
        self.ranks: Sequence[int] = range(count)
        self._came: dict[str, str] = {}
        # Workers start recordings in the same order.
        self._prefix = f"unifiedamp/recorded/{next(_recordings)}"
        if rank == 0:
            self._values.set_config_key_value(f"{self._prefix}/begun", "1")

    def _key(self, step: int, rank: int) -> str:
        return f"{self._prefix}/{step}/{rank}"

    def _read(self, key: str, seconds: float) -> str | None:
        """Return a value, or None where it does not come within some seconds."""
        if key not in self._came:
            with contextlib.suppress(*MISSING):
                self._came[key] = self._values.get_config_key_value(key, max(1, round(1000 * seconds)))
        return self._came.get(key)

    def received(self) -> bool:
        try:
            return self._read(f"{self._prefix}/begun", ANSWER) is not None
        except GONE:
            return True  # it ended before this worker, having waited for what workers post; nothing more can be known

    def post(self, step: int, text: str) -> None:
        self._values.set_config_key_value(self._key(step, self.rank), text)

    def ready(self, step: int, seconds: float) -> bool:
        end = time.monotonic() + seconds
        keys = (self._key(step, rank) for rank in self.ranks if rank != self.rank)
        return all(self._read(key, end - time.monotonic()) is not None for key in keys)

    def take(self, step: int) -> Mapping[int, str]:
        found = {}
        for rank in self.ranks:
            key = self._key(step, rank)
            if rank != self.rank and self._read(key, 0.0) is not None:
                found[rank] = self._came.pop(key)
                self._values.delete_config_key_value(key)
        return found


def worker_messages(rank: int, count: int) -> WorkerMessages | None:
    """Return the messages of workers; None where this TensorFlow has no values that they share."""
    values = shared_values()
    return None if values is None else WorkerMessages(rank, count, values)
