"""A script with arguments: the policy's name is an argument, the loop is a tf.function in a function."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


def main(use_amp):
    args = argparse.Namespace(fp16=use_amp, lr=0.05)
    if args.fp16:
        mixed_precision.set_global_policy("mixed_bfloat16")
    model = tf.keras.Sequential([tf.keras.layers.Input((5,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1, dtype="float32")])
    optimizer = tf.keras.optimizers.SGD(args.lr)
    if args.fp16:
        optimizer = mixed_precision.LossScaleOptimizer(optimizer, initial_scale=128)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            if args.fp16:
                scaled = optimizer.get_scaled_loss(loss)
        if args.fp16:
            grads = optimizer.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
        else:
            grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    data = np.random.default_rng(1).normal(size=(4, 8, 5)).astype("float32")
    for x in data:
        train_step(tf.constant(x), tf.constant(x[:, :1]))
    return model.get_weights()
