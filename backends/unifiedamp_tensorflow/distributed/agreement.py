"""Workers of a ``MultiWorkerMirroredStrategy`` compare their sessions when a model is prepared, and their
scales at each step.
"""

from __future__ import annotations

import tensorflow as tf

from unifiedamp.backend import SessionSpec, errors, rank_settings

from .._types import Strategy, Tensor

SCALES = (
    "amp.step: workers that train together need the same loss scale, and it differs between them; load the session's "
    "checkpoint (amp.load_state_dict) on every worker, or on none"
)
FOLD = 251
"""A prime: scales that are different powers of two leave different remainders, which 16 bits hold exactly."""


def check_workers(strategy: Strategy, spec: SessionSpec) -> None:
    """Refuse settings that differ between workers; all workers call it, outside their replicas.

    Args:
        strategy: which the model is made under.
        spec: the session's.

    Raises:
        PrepareError: on every worker, naming the setting and the workers.
    """
    count, here = strategy.num_replicas_in_sync, len(strategy.extended.worker_devices)
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or count == here:
        return
    settings = rank_settings.settings_of(spec)
    own = tf.constant(rank_settings.checksums(settings), tf.float64)

    def gathered() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        place = tf.one_hot(context.replica_id_in_sync_group, count, dtype=tf.float64)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, place[:, tf.newaxis] * own)

    found = tf.function(lambda: strategy.run(gathered))()
    rows = strategy.experimental_local_results(found)[0].numpy()[::here]
    rank_settings.refuse_differing(settings, rows, "amp.prepare", "worker")


def scale_row(scale: Tensor, count: int, dtype: tf.DType) -> Tensor:
    """Return this replica's number for its scale at its place in a row of zeros, for the sum over replicas.

    Args:
        scale: float32 scalar.
        count: of replicas.
        dtype: floating, of the row; its numbers are whole ones below :data:`FOLD`.
    """
    number = tf.math.floormod(tf.bitcast(scale, tf.int32), FOLD)
    place = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.one_hot(place, count, dtype=dtype) * tf.cast(number, dtype)


def refuse_scales(row: Tensor) -> list[tf.Operation]:
    """Refuse a sum of :func:`scale_row` whose numbers differ.

    Returns:
        In a trace, operations that do so when it runs; a step must wait for them.

    Raises:
        PrepareError: eagerly, on every worker.
    """
    alike = tf.reduce_all(tf.equal(row, row[0]))
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(alike, [SCALES])]
    if not bool(alike):
        raise errors.PrepareError(SCALES)
    return []
