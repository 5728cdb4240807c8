"""The workers of a ``MultiWorkerMirroredStrategy`` that train a workload together."""

from __future__ import annotations

import functools
import os
import re
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.backend import Launch, Ranks, errors

from ..device.selection import select_device

LARGEST = 64
"""Above the number of each signal that is asked for."""
ASKED_EVERY = 8
"""Steps after which workers tell each other of signals: each time, all wait for the slowest."""
TASK = re.compile(r"/job:worker/replica:0/task:(\d+)")


class LaunchedRanks(Ranks):
    """Workers of one strategy, each with one replica. Its variables have the first worker's initial values.

    Args:
        strategy: a ``MultiWorkerMirroredStrategy``.
        rank: this worker's.
    """

    def __init__(self, strategy: Any, rank: int) -> None:
        self._strategy, self.rank, self.size, self._asked = strategy, rank, strategy.num_replicas_in_sync, 0
        self._pending = 0
        # An eager call of run logs a warning each time.
        self._summed = tf.function(self._all_reduce, input_signature=[tf.TensorSpec([None], tf.float64)])

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step on this worker's replica; replicas sum their gradients, so that each counts for its share."""

        def train_step(batch: Any, factor: float = 1.0) -> Any:
            return self._strategy.run(step, (batch, factor / self.size)) * self.size

        return train_step

    def largest(self, number: int) -> int:
        self._asked, self._pending = self._asked + 1, max(self._pending, number)
        if self._asked % ASKED_EVERY:
            return 0
        counts = self._sum(np.eye(LARGEST)[self._pending])
        return int(np.flatnonzero(counts).max())

    def mean(self, values: Any) -> Any:
        return self._sum(values) / self.size if len(values) else values

    def differing(self, value: str) -> int | None:
        own = np.zeros(self.size)
        own[self.rank] = zlib.crc32(value.encode())
        found = self._sum(own)
        return next((rank for rank, each in enumerate(found) if each != found[0]), None)

    def lost(self, error: Exception) -> str | None:
        """Collectives of TensorFlow name the worker that they cannot reach."""
        if not isinstance(error, tf.errors.OpError):
            return None
        named = {int(task) for task in TASK.findall(str(error))} - {self.rank}
        return f"worker {min(named)} of TF_CONFIG" if named else None

    def leave(self) -> None:
        self._sum(np.zeros(1))

    def _sum(self, values: Any) -> Any:
        """Return the sum of a float64 array over the workers."""
        return np.asarray(self._summed(tf.constant(values, tf.float64)))

    def _all_reduce(self, values: Any) -> Any:
        def summed() -> Any:
            own = tf.identity(values)  # on the replica's device
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

        return self._strategy.run(summed)


@functools.cache
def strategy_here() -> Any:
    """Return the strategy of ``TF_CONFIG``, of which a process makes one."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def join(launch: Launch, wanted: str | None) -> tuple[LaunchedRanks, str]:
    """Make the strategy of ``TF_CONFIG``; see ``Backend.join``."""
    if not os.environ.get("TF_CONFIG"):
        raise errors.UnsupportedError(
            f"train: {launch.launcher} started {launch.size} processes, and TensorFlow joins those of TF_CONFIG alone: "
            "set it in each of them"
        )
    info = select_device(wanted)
    if info.is_cpu:
        tf.config.set_visible_devices([], "GPU")
    elif len(tf.config.get_visible_devices("GPU")) > 1:
        raise errors.ConfigError(
            "train: this worker of TF_CONFIG sees several GPUs; start one worker per GPU, each with its GPU in "
            'CUDA_VISIBLE_DEVICES, or use device = "cpu"'
        )
    try:
        strategy = strategy_here()
    except (RuntimeError, tf.errors.OpError) as error:
        raise errors.ConfigError(
            f"train: TensorFlow cannot join the workers of TF_CONFIG: {error} (the workload's file must run no "
            "operation of TensorFlow when it is imported)"
        ) from None
    return LaunchedRanks(strategy, launch.rank), info.name
