"""The model is the file's; a function makes the optimizer and trains, and gives the model's name no value."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision

mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, dtype="float32")])


def main():
    model.summary(print_fn=lambda *_, **__: None)
    optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    for rows in np.split(x, 3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(rows, training=True) - rows.sum(1, keepdims=True)))
            loss = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return model.get_weights()
