"""strategy.run of a step: the optimizer's scaled loss inside, reduced outside."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


def main():
    mixed_precision.set_global_policy("mixed_float16")
    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1, dtype="float32")])
        optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
            scaled_loss = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled_gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for x in np.random.default_rng(3).normal(size=(3, 8, 4)).astype("float32"):
        per_replica = strategy.run(step, args=(tf.constant(x),))
        strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)
    return model.get_weights()
