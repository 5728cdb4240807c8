"""The experimental policies of TensorFlow 2.0 to 2.3, a static loss scale, and model.fit."""

import random

import numpy as np
import tensorflow as tf
from tensorflow.keras.mixed_precision import experimental as mixed_precision

keras = tf.keras


def train(steps):
    policy = mixed_precision.Policy("mixed_float16", loss_scale=128)
    mixed_precision.set_policy(policy)

    random.seed(0)
    tf.random.set_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(4),
            keras.layers.Activation("softmax", dtype="float32"),
        ]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="sparse_categorical_crossentropy")

    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 16)).astype("float32")
    y = x[:, :4].argmax(axis=1)
    return model.fit(x, y, batch_size=64, epochs=steps, verbose=0).history["loss"]
