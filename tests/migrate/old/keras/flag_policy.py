"""The policy behind a flag, a functional model made in a function, compile and fit."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision


def build_model(width):
    inputs = tf.keras.Input((6,))
    x = layers.Dense(width, activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    return tf.keras.Model(inputs, layers.Dense(3, activation="softmax", dtype="float32")(x))


def main(use_amp):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    if use_amp:
        policy = mixed_precision.Policy("mixed_bfloat16")
        mixed_precision.set_global_policy(policy)
        print("compute dtype:", policy.compute_dtype)
    model = build_model(8)
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()
