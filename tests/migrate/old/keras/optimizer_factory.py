"""Optimizer and model come out of functions; the wrapper is applied in one of them."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.mixed_precision import LossScaleOptimizer, set_global_policy


def make_optimizer(mixed):
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.1, momentum=0.9)
    if mixed:
        optimizer = LossScaleOptimizer(optimizer)
    return optimizer


def make_model():
    inputs = tf.keras.layers.Input(shape=(4,))
    hidden = tf.keras.layers.Dense(6, activation="tanh")(inputs)
    return tf.keras.models.Model(inputs=inputs, outputs=tf.keras.layers.Dense(1, dtype="float32")(hidden))


def main(use_amp):
    if use_amp:
        set_global_policy("mixed_bfloat16")
    model = make_model()
    model.compile(optimizer=make_optimizer(use_amp), loss="mse")
    x = np.random.default_rng(2).normal(size=(24, 4)).astype("float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
