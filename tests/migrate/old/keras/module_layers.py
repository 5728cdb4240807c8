"""Layers outside functions, and a part of the model from another function."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

mixed_precision.set_global_policy("mixed_bfloat16")

embed = layers.Dense(8, activation="tanh")


def backbone():
    inputs = tf.keras.Input((6,))
    return tf.keras.Model(inputs, embed(inputs))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    body = backbone()
    body.trainable = True
    head = layers.Dense(3, activation="softmax", dtype="float32")
    model = tf.keras.Model(body.input, head(body.output))
    assert embed.compute_dtype == body.layers[-1].compute_dtype == "bfloat16"
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
