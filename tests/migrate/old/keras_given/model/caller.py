"""Compiles and fits the model."""

import numpy as np
import tensorflow as tf
from engine import Autoencoder

import unifiedamp as ua


def build():
    inputs = tf.keras.Input((5,))
    hidden = tf.keras.layers.Dense(3, activation="tanh")(inputs)
    return Autoencoder(inputs, tf.keras.layers.Dense(5, dtype="float32")(hidden))


def before(flag):
    tf.keras.mixed_precision.set_global_policy("mixed_float16" if flag else "float32")
    model, optimizer = build(), tf.keras.optimizers.SGD(0.1, momentum=0.9)
    if flag:
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
    return train(model, optimizer)


def after(flag):
    scale = ua.DynamicLossScale(initial_scale=1024.0) if flag else "none"
    amp = ua.Amp("tensorflow", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    with amp.scope():
        model = build()
    model, optimizer = amp.prepare(model, tf.keras.optimizers.SGD(0.1, momentum=0.9))
    return train(model, optimizer)


def train(model, optimizer):
    model.compile(optimizer=optimizer)
    x = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
    model.fit(x, x[:, ::-1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
