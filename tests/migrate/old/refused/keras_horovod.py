"""Horovod's tape, and a second optimizer that applies what the first one unscaled."""

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.keras import mixed_precision

mixed_precision.set_global_policy("mixed_float16")
body = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8)])
model = tf.keras.Sequential([body, tf.keras.layers.Dense(1)])
first = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
second = tf.keras.optimizers.SGD(0.1)


def step(x, y):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        scaled = first.get_scaled_loss(loss)
    tape = hvd.DistributedGradientTape(tape)
    top = model.layers[1].trainable_variables
    some = first.get_unscaled_gradients(tape.gradient(scaled, top))
    rest = first.get_unscaled_gradients(tape.gradient(scaled, body.trainable_variables))
    first.apply_gradients(zip(some, top))
    second.apply_gradients(zip(rest, body.trainable_variables))
