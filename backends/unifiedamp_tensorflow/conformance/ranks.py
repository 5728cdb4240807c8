"""Trains the kit's cases on replicas of a ``MirroredStrategy``, which one process drives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from unifiedamp.conformance.ranks import (
    LEARNING_RATE,
    SIZES,
    Answers,
    Array,
    RankCase,
    RankKind,
    RankTrace,
    Rows,
    answers_of,
    owned,
    play_all,
)

from ..internals import native
from .replicas import of_cluster, process, replicas_on_cpu, workers

keras: Any = tf.keras

KINDS: Mapping[str, RankKind] = {
    "mirrored": RankKind(reduction="sum", absent="some", other_forms=("compiled", "xla")),
    "multi worker": RankKind(reduction="sum", other_forms=("compiled",), costly=True, loads_alone=True),
}
"""A replica's loss must depend on some variable; workers cannot know what others leave out."""


def run_on_ranks(kind: str, count: int, form: str, options: Mapping[str, Any], cases: Sequence[RankCase]) -> Answers:
    """Train cases on ``count`` replicas; see ``Harness.run_ranks``.

    Args:
        kind: of ``KINDS``.
        count: how many replicas.
        form: how steps run.
        options: the form's ``backend_options``.
        cases: what to train.
    """
    if kind == "multi worker" and count > 1:
        return answers_of(workers(count), train_worker, cases, form, dict(options))
    return answers_of(process(count), train, cases, count, form, dict(options))


def train(
    _index: int, _processes: int, cases: Sequence[RankCase], count: int, form: str, options: Mapping[str, Any]
) -> Iterator[list[RankTrace]]:
    """Train cases on all replicas; the program of the one process."""
    return play_all(Replicas(replicas_on_cpu(count), options), cases, form)


def train_worker(
    index: int, _processes: int, cases: Sequence[RankCase], form: str, options: Mapping[str, Any]
) -> Iterator[list[RankTrace]]:
    """Train cases on the replica of one worker; the program of each."""
    return play_all(Replicas(of_cluster(), options), cases, form, index == 0)


class RankModel(keras.Model):
    """``sum(w_i * x_i)`` of vectors."""

    def __init__(self, weights: Sequence[Array]) -> None:
        super().__init__(name="ranks")
        self.ws = [
            self.add_weight(name=f"w{i}", shape=each.shape, initializer=keras.initializers.Constant(each))
            for i, each in enumerate(weights)
        ]
        self.built = True

    def call(self, rows: Any) -> Any:
        """Return the scalar; rows that are None are left out."""
        pairs = [(w, row) for w, row in zip(self.ws, rows, strict=True) if row is not None]
        return tf.add_n([tf.reduce_sum(tf.convert_to_tensor(native(w)) * row) for w, row in pairs])


class Replicas:
    """The replicas of a strategy.

    Args:
        strategy: over devices of the CPU, or workers.
        options: the form's ``backend_options``.
    """

    def __init__(self, strategy: Any, options: Mapping[str, Any]) -> None:
        self._strategy, self._options = strategy, options

    def options(self) -> Mapping[str, Any]:
        return {"backend": "tensorflow", "device": "cpu", "backend_options": {"tensorflow": dict(self._options)}}

    def make(self, case: RankCase) -> tuple[Any, Sequence[Any]]:
        with self._strategy.scope():
            model = RankModel(case.weights)
            optimizers = [keras.optimizers.SGD(LEARNING_RATE, case.momentum) for _ in owned(case.optimizers)]
            for optimizer, params in zip(optimizers, owned(case.optimizers), strict=True):
                optimizer.build([model.ws[i] for i in params])
        return model, optimizers

    def batch(self, ranks: Sequence[Rows]) -> Any:
        spread = self._strategy.experimental_distribute_values_from_function
        filled = [
            [np.zeros(size, np.float32) if row is None else row for row in column]
            for size, column in zip(SIZES, zip(*ranks, strict=True), strict=True)
        ]
        rows = [spread(lambda r, column=column: tf.constant(column[r.replica_id_in_sync_group])) for column in filled]
        return rows, [[row is not None for row in of_rank] for of_rank in ranks]

    def loss(self, model: Any, batch: Any) -> Any:
        rows, given = batch
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        here = given[int(tf.get_static_value(replica)) if tf.is_tensor(replica) else replica]
        return model([row if there else None for row, there in zip(rows, here, strict=True)])

    def spread(self, step: Any, compile: Callable[[Any], Any]) -> Any:
        def run(batch: Any) -> Any:
            return self._strategy.run(step, (batch,))

        return compile(run)

    def norms(self, returned: Sequence[Any], amp: Any) -> list[tuple[float, ...]]:
        found = [self._strategy.experimental_local_results(norm) for norm in returned]
        return [
            tuple(float(norm[rank]) for norm in found) for rank in range(len(self._strategy.extended.worker_devices))
        ]

    def weights(self, model: Any) -> list[tuple[Array, ...]]:
        copies = [self._strategy.experimental_local_results(native(w)) for w in model.ws]
        return [tuple(copy.numpy().astype("float64") for copy in of_rank) for of_rank in zip(*copies, strict=True)]
