"""A tape loop over two models with an optimizer each, clipped by norm."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

mixed_precision.set_global_policy("mixed_float16")


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    first = tf.keras.Sequential([layers.Input((6,)), layers.Dense(3, dtype="float32")])
    second = tf.keras.Sequential([layers.Input((6,)), layers.Dense(3, dtype="float32")])
    opt1 = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    opt2 = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.2))
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, first(x, training=True))
            scaled = opt1.get_scaled_loss(loss)
        grads = opt1.get_unscaled_gradients(tape.gradient(scaled, first.trainable_variables))
        opt1.apply_gradients(zip(grads, first.trainable_variables))
        with tf.GradientTape() as tape2:
            loss2 = loss_fn(y, second(x, training=True))
            scaled2 = opt2.get_scaled_loss(loss2)
        grads2 = opt2.get_unscaled_gradients(tape2.gradient(scaled2, second.trainable_variables))
        opt2.apply_gradients(zip(grads2, second.trainable_variables))
    return [*first.get_weights(), *second.get_weights()]
