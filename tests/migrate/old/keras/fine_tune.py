"""Compiled twice: first the head, then all of it."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

tf.keras.mixed_precision.set_global_policy("mixed_float16")


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    base = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(8, activation="relu")], name="base")
    base.trainable = False
    inputs = tf.keras.Input((6,))
    features = base(inputs)
    outputs = layers.Dense(3, activation="softmax", dtype="float32")(features)
    model = tf.keras.Model(inputs, outputs)
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-2), loss="sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    base.trainable = True
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
