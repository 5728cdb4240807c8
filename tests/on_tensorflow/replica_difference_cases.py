"""Runs on one device and on two replicas, recorded to be compared; see ``replica_cases``."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow as tf
from compared_runs import BATCHES, SUMS, network, spoiled, wrong_sums
from replica_sessions import STRATEGY, in_forms, keras, spread

import unifiedamp as ua
from unifiedamp.conformance.recorded import Kept

PLANTED = {
    "eager": ("plain", "renamed", "rate", "data", "gradient", "reduction", "overflow"),
    "compiled": ("plain", "data", "gradient", "reduction"),
    "max": ("plain", "reduction"),
}


def recorded(form, case, count=2):
    """Return the records of three steps on the whole batch, or on every second row of it."""
    amp = ua.Amp("tensorflow", "float32", device="cpu", loss_scale=8.0)
    with STRATEGY.scope() if count > 1 else contextlib.nullcontext(), amp.scope():
        total = tf.Variable(1.0, trainable=False)
        model = network("renamed" if case == "renamed" else "layer")
        optimizer = keras.optimizers.SGD(0.2 if case == "rate" else 0.1)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, factor):
        loss = amp.backward(lambda: tf.reduce_mean(tf.square(spoiled(model(x), factor))) / count, optimizer)
        amp.step(optimizer)
        return loss

    run, kept = spread(step, amp, form) if count > 1 else step, Kept()
    with contextlib.closing(amp), amp.record(kept, every=1, compare=True), wrong_sums(amp, total):
        for number, batch in enumerate(BATCHES, 1):
            rows = [batch[place::count] for place in range(count)]
            if case == "data" and number == 2:
                rows[-1] = rows[-1] + np.float32(0.1)
            factor = [1.0] * (count - 1) + [1.5 if case == "gradient" and number == 2 else 1.0]
            total.assign(SUMS.get(case, 1.0) if number == 2 else 1.0)
            run(per_replica(rows), per_replica(np.float32(factor)))
    return kept.records


def per_replica(values):
    if len(values) == 1:
        return tf.constant(values[0])
    return STRATEGY.experimental_distribute_values_from_function(
        lambda replica: tf.constant(values[replica.replica_id_in_sync_group])
    )


@in_forms(*PLANTED)
def case_differences(form):
    alone = {"alone": recorded(form, "plain", 1)} if form == "eager" else {}
    return {case: recorded(form, case) for case in PLANTED[form]} | alone
