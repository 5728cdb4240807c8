"""Gradients are added up in variables, and applied at every second batch."""

import tensorflow as tf
from tensorflow.keras import mixed_precision

mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
opt = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
totals = [tf.Variable(tf.zeros_like(one), trainable=False) for one in model.trainable_variables]


def step(x, y, last):
    with tf.GradientTape() as tape:
        scaled = opt.get_scaled_loss(tf.reduce_mean((model(x, training=True) - y) ** 2))
    for total, grad in zip(totals, opt.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))):
        total.assign_add(grad)
    if last:
        opt.apply_gradients(zip(totals, model.trainable_variables))
