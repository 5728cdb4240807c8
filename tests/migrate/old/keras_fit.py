"""model.fit under a Keras policy: Keras wraps the optimizer by itself."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers


def train(steps):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 6)).astype("float32"), rng.normal(size=(16, 1)).astype("float32")

    # A model.
    model = keras.Sequential()
    model.add(keras.Input((6,)))
    model.add(layers.Dense(8, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(1)))
    model.add(layers.Dense(1, dtype="float32", kernel_initializer=keras.initializers.GlorotUniform(2)))
    model.compile(optimizer="adam", loss="mse")
    history = model.fit(x, y, batch_size=16, epochs=steps, shuffle=False, verbose=0)
    return history.history["loss"]
