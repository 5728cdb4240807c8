"""A new model in each fold, from a function; the policy is set in another."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers, mixed_precision


def setup():
    mixed_precision.set_global_policy("mixed_bfloat16")


def get_model():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax", dtype="float32")(layers.Dense(8)(inputs)))
    return model


def main():
    setup()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    weights = []
    for fold in range(2):
        model = get_model()
        opt = keras.optimizers.Adam(learning_rate=1e-2)
        model.compile(optimizer=opt, loss="sparse_categorical_crossentropy")
        model.fit(x[fold::2], y[fold::2], batch_size=16, epochs=2, shuffle=False, verbose=0)
        weights += model.get_weights()
    return weights
