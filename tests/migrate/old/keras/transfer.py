"""Transfer learning: a frozen base made by a helper, a callback, the policy by its own object."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers


def build_base():
    return keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="relu")], name="base")


def build_model():
    base = build_base()
    base.trainable = False
    inputs = keras.Input(shape=(6,))
    x = base(inputs, training=False)
    x = layers.Dense(4)(x)
    outputs = layers.Activation("softmax", dtype="float32")(x)
    return keras.Model(inputs, outputs)


def main(use_amp):
    if use_amp:
        policy = keras.mixed_precision.Policy("mixed_bfloat16")
        keras.mixed_precision.set_global_policy(policy)
        print("Compute dtype:", policy.compute_dtype)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    model.fit(x, y, epochs=2, verbose=0, shuffle=False, callbacks=[keras.callbacks.TerminateOnNaN()])
    return model.get_weights()
