"""A tape loop in which a flag chooses between scaled and plain gradients."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


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

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
            if use_amp:
                scaled_loss = optimizer.get_scaled_loss(loss)
        if use_amp:
            scaled = tape.gradient(scaled_loss, model.trainable_variables)
            gradients = optimizer.get_unscaled_gradients(scaled)
        else:
            gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for _ in range(4):
        step(x, y)
    return model.get_weights()
