"""After training the policy is float32 again, and the model is made once more for export."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers


def make():
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(3, dtype="float32")(hidden))


def main():
    keras.mixed_precision.set_global_policy("mixed_float16")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    net = make()
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    net.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)

    keras.mixed_precision.set_global_policy("float32")
    exported = make()
    exported.set_weights(net.get_weights())
    assert exported.layers[1].compute_dtype == "float32"
    return exported.get_weights()
