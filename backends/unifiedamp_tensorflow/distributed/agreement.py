"""Workers of a ``MultiWorkerMirroredStrategy`` compare their sessions when a model is prepared."""

from __future__ import annotations

import tensorflow as tf

from unifiedamp.backend import SessionSpec, rank_settings

from .._types import Strategy


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
