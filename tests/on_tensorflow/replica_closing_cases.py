"""Keras's own steps on two replicas after a session was closed; see ``replica_cases``."""

from __future__ import annotations

import contextlib

import tensorflow as tf
from replica_sessions import EAGER, STRATEGY, in_forms, keras

import unifiedamp as ua


def trained(strategy):
    """Return the weight after two steps of a session with ``state_dtype`` and two native ones."""
    amp = ua.Amp("tensorflow", "mixed_bfloat16;state_dtype=bfloat16", device="cpu")
    alone = strategy is None
    with contextlib.nullcontext() if alone else strategy.scope(), amp.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="ones")])
        native = keras.optimizers.Adam(0.01)
    model, optimizer = amp.prepare(model, native)

    def loss():
        outputs = tf.cast(model(tf.ones((2, 4))), tf.float32)
        return tf.reduce_mean(tf.square(outputs)) / (1 if alone else strategy.num_replicas_in_sync)

    def ours():
        amp.backward(loss, optimizer)
        amp.step(optimizer)

    def own():
        with tf.GradientTape() as tape:
            value = loss()
        weights = model.trainable_variables
        native.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))

    step = amp.compile(ours if alone else lambda: strategy.run(ours))
    step(), step()
    amp.close()
    step = tf.function(own if alone else lambda: strategy.run(own))
    step(), step()
    return float(model.get_weights()[0][0, 0])


@in_forms(*EAGER)
def case_closed_moments(form):
    return [trained(None), trained(STRATEGY)]
