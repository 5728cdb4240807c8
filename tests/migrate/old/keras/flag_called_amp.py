"""An epoch whose flag is called as a session is, and a loop over pairs of which one is."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


def epoch(model, batches, optimizer, loss_fn, amp=False):
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
            if amp:
                scaled_loss = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled_loss if amp else loss, model.trainable_variables)
        if amp:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def describe(model, settings):
    lines = []
    for name, amp in settings.items():
        lines.append(f"{model.name}: {name} {amp}")
    return lines


def main(use_amp):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    if use_amp:
        mixed_precision.set_global_policy("mixed_float16")
    inputs = tf.keras.Input((6,))
    hidden = tf.keras.layers.Dense(8, activation="relu")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(3, dtype="float32")(hidden))
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    if use_amp:
        optimizer = mixed_precision.LossScaleOptimizer(optimizer)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    epoch(model, [(x, y)] * 4, optimizer, loss_fn, amp=use_amp)
    assert describe(model, {"amp": use_amp})
    return model.get_weights()
