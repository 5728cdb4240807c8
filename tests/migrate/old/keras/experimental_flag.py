"""TensorFlow 2.3's spelling, behind a flag, with train_on_batch."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers


def main(use_amp):
    config = {"mixed": use_amp}
    if config["mixed"]:
        policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16")
        tf.keras.mixed_precision.experimental.set_policy(policy)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    model = tf.keras.Sequential()
    model.add(layers.Input((6,)))
    model.add(layers.Dense(8, activation="relu"))
    model.add(layers.Dense(3))
    model.add(layers.Activation("softmax", dtype="float32"))
    opt = tf.keras.optimizers.Adam(0.01)
    model.compile(optimizer=opt, loss="sparse_categorical_crossentropy")
    for _ in range(3):
        model.train_on_batch(x, y)
    return model.get_weights()
