"""Transfer learning in two functions, each with its own compile; the first one's optimizer is made by name."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

USE_MIXED_PRECISION = True


def setup():
    if USE_MIXED_PRECISION:
        try:
            mixed_precision.set_global_policy("mixed_bfloat16")
            print("mixed precision")
        except ValueError:
            pass


def build():
    base = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(8, activation="relu")], name="base")
    base.trainable = False
    inputs = tf.keras.Input((6,))
    outputs = layers.Dense(3, activation="softmax", dtype="float32")(base(inputs))
    return tf.keras.Model(inputs, outputs), base


def train_head(model, x, y):
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    return model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)


def fine_tune(model, base, x, y):
    base.trainable = True
    model.compile(optimizer=tf.keras.optimizers.SGD(1e-2), loss="sparse_categorical_crossentropy")
    return model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)


def main():
    setup()
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    model, base = build()
    train_head(model, x, y)
    fine_tune(model, base, x, y)
    return model.get_weights()
