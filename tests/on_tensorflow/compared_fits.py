"""Runs of ``fit`` with planted faults, recorded to be compared."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow as tf
from compared_runs import BATCHES, SIZES, SUMS, network, spoiled, wrong_sums

import unifiedamp as ua
from unifiedamp.conformance.recorded import Kept
from unifiedamp.integrations.keras import AmpCallback

keras = tf.keras
SECOND = slice(12, 16)
"""The rows of the second batch that the second replica gets."""


class Faulty(keras.callbacks.Callback):
    """Sets a factor of the sum over replicas in the second step."""

    def __init__(self, total, factor):
        super().__init__()
        self.total, self.factor = total, factor

    def on_train_batch_begin(self, batch, logs=None):
        self.total.assign(self.factor if batch == 1 else 1.0)


@contextlib.contextmanager
def wrong_native_sums(optimizer, factor):
    """As ``wrong_sums``, of the sums that Keras makes."""
    name = "_all_reduce_sum_gradients" if hasattr(optimizer, "scale_loss") else "aggregate_gradients"
    native = getattr(optimizer, name)
    object.__setattr__(
        optimizer, name,
        lambda pairs: [(value * factor if value.shape == SIZES[1:] else value, v) for value, v in native(pairs)],
    )  # fmt: skip
    yield
    object.__delattr__(optimizer, name)


class Fit:
    """A session whose model is fitted anew for each case, by one train function, on one device or under a strategy.

    The targets are what gradients are multiplied by.
    """

    def __init__(self, form, strategy=None, scale=8.0):
        self.amp = ua.Amp("tensorflow", "float32", device="cpu", loss_scale=scale)
        with contextlib.nullcontext() if strategy is None else strategy.scope(), self.amp.scope():
            self.total = tf.Variable(1.0, trainable=False)
            self.model, optimizer = self.amp.prepare(network(), keras.optimizers.SGD(0.1))
            self.model.compile(
                optimizer, lambda factor, output: tf.reduce_mean(tf.square(spoiled(output, factor)), -1),
                run_eagerly=form == "eager", jit_compile=False,
            )  # fmt: skip
        faulty = wrong_native_sums(optimizer, self.total) if scale == "none" else wrong_sums(self.amp, self.total)
        self.faulty, self.weights, self.state = faulty, self.model.get_weights(), self.amp.state_dict()

    def __enter__(self):
        self.faulty.__enter__()
        return self

    def __exit__(self, *exception):
        self.faulty.__exit__(*exception)
        self.amp.close()

    def records(self, case):
        """Return the records of three steps."""
        self.model.set_weights(self.weights)
        self.amp.load_state_dict(self.state)
        self.model.optimizer.learning_rate = 0.2 if case == "rate" else 0.1
        x, factor, kept = np.concatenate(BATCHES), np.ones((24, 1), np.float32), Kept()
        x[SECOND] += 0.1 * (case == "data")
        factor[SECOND] += 0.5 * (case == "gradient")
        callbacks = [AmpCallback(self.amp, kept, every=1, compare=True), Faulty(self.total, SUMS.get(case, 1.0))]
        self.model.fit(x, factor, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
        return kept.records
