"""A run on the workers of a ``MultiWorkerMirroredStrategy``, recorded to be compared; see ``two_workers``."""

from __future__ import annotations

import contextlib

import tensorflow as tf
from compared_fits import Fit
from compared_runs import BATCHES, SUMS, network, spoiled, wrong_sums

import unifiedamp as ua
from unifiedamp.conformance.recorded import Kept

CASES = ("plain", "data", "gradient", "overflow")


def records(strategy, rank):
    """Return the records of each case, which the first worker writes; one compiled step serves all of them."""
    amp = ua.Amp("tensorflow", "float32", device="cpu", loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    with strategy.scope(), amp.scope():
        total, model, optimizer = tf.Variable(1.0, trainable=False), network(), tf.keras.optimizers.SGD(0.1)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, factor):
        amp.backward(lambda: tf.reduce_mean(tf.square(spoiled(model(x), factor))) / 2, optimizer)
        amp.step(optimizer)

    run = amp.compile(lambda *batch: strategy.run(step, batch))
    weights, state, found = model.get_weights(), amp.state_dict(), {}
    with contextlib.closing(amp), wrong_sums(amp, total):
        for case in CASES:
            model.set_weights(weights)
            amp.load_state_dict(state)
            kept = Kept()
            with amp.record(kept, every=1, compare=True):
                for number, batch in enumerate(BATCHES, 1):
                    wrong = rank == 1 and number == 2
                    total.assign(SUMS.get(case, 1.0) if number == 2 else 1.0)
                    x = batch[rank::2] + (0.1 if wrong and case == "data" else 0.0)
                    run(tf.constant(x, tf.float32), tf.constant(1.5 if wrong and case == "gradient" else 1.0))
            found[case] = kept.records
    return found


def fit_records(strategy):
    """Return the records of ``fit`` in each case; none under Keras 3, which does not run it there."""
    if hasattr(tf.keras.mixed_precision.LossScaleOptimizer, "scale_loss"):
        return {}
    with Fit("compiled", strategy) as workers:
        return {case: workers.records(case) for case in CASES}
