"""A model that is compiled with a wrapped optimizer, in a file that sets no policy."""

import numpy as np
from tensorflow import keras
from tensorflow.keras.mixed_precision import LossScaleOptimizer


def compiled(width):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=LossScaleOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    return model


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4)).astype("float32")
    model = compiled(6)
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()
