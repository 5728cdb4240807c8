"""The model is handed to the function that compiles and trains it."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision
from tensorflow.keras.models import Model

mixed_precision.set_global_policy("mixed_bfloat16")


def create():
    inputs = layers.Input(shape=(6,))
    x = layers.Dense(8, activation="relu")(inputs)
    for _ in range(2):
        x = layers.Dense(8, activation="relu")(x)
    outputs = layers.Dense(3, activation="softmax", dtype="float32")(x)
    return Model(inputs=inputs, outputs=outputs)


def train(network, x, y, optimizer="adam"):
    network.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
    network.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    model = create()
    train(model, x, y)
    return model.get_weights()
