"""A custom loop under a Keras policy, with the calls of Keras 2's LossScaleOptimizer."""

import random

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision

keras = tf.keras


def train(steps):
    mixed_precision.set_global_policy("mixed_float16")
    random.seed(0)
    tf.random.set_seed(0)
    inputs = keras.Input((16,))
    x = keras.layers.Dense(32, activation="relu")(inputs)
    outputs = keras.layers.Activation("softmax", dtype="float32")(keras.layers.Dense(4)(x))
    model = keras.Model(inputs, outputs)

    optimizer = keras.optimizers.RMSprop(0.01)
    optimizer = mixed_precision.LossScaleOptimizer(optimizer)
    loss_object = keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x)
            loss = loss_object(y, predictions)
            scaled_loss = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled_gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 16)).astype("float32")
    y = x[:, :4].argmax(axis=1)
    return [float(train_step(x, y)) for _ in range(steps)]
