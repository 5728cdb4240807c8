"""Workers of a ``MultiWorkerMirroredStrategy`` compare their sessions when a model is prepared, and the numbers of
their loss scales at each step.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from unifiedamp.backend import SessionSpec, errors, rank_settings

from .._types import Strategy, Tensor

SCALES = (
    "amp.step: workers that train together need the same loss scale and the same count of good steps, and these "
    "differ between them; load the session's checkpoint (amp.load_state_dict) on every worker, or on none"
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


def scale_rows(numbers: Sequence[Tensor], count: int, dtype: tf.DType) -> Tensor:
    """Return what stands for this replica's numbers at its place in rows of zeros, for the sum over replicas.

    Args:
        numbers: float32 or int64 scalars.
        count: of replicas.
        dtype: floating, of the rows; they hold whole numbers below :data:`FOLD`.

    Returns:
        shape (len(numbers), count).
    """
    whole = [tf.cast(each if each.dtype.is_integer else tf.bitcast(each, tf.int32), tf.int64) for each in numbers]
    remainders = tf.cast(tf.math.floormod(tf.stack(whole), FOLD), dtype)
    place = tf.distribute.get_replica_context().replica_id_in_sync_group
    return remainders[:, tf.newaxis] * tf.one_hot(place, count, dtype=dtype)


def refuse_scales(rows: Tensor) -> list[tf.Operation]:
    """Refuse a sum of :func:`scale_rows` whose numbers differ.

    Returns:
        In a trace, operations that do so when it runs; a step must wait for them.

    Raises:
        PrepareError: eagerly, on every worker.
    """
    alike = tf.reduce_all(tf.equal(rows, rows[:, :1]))
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(alike, [SCALES])]
    if not bool(alike):
        raise errors.PrepareError(SCALES)
    return []
