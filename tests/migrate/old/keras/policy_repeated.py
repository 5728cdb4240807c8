"""The policy is set at the start, and once more for the devices, behind what they need."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision
from tensorflow.keras.layers import Dense
from tensorflow.keras.models import Model
from tensorflow.keras.optimizers import SGD

mixed_precision.set_global_policy("mixed_bfloat16")

devices = tf.config.list_physical_devices("CPU")
if devices:
    try:
        for device in devices:
            assert device.name
    except RuntimeError as error:
        print(error)
    from tensorflow.keras import mixed_precision

    mixed_precision.set_global_policy(mixed_precision.Policy("mixed_bfloat16"))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    inputs = tf.keras.Input((6,))
    model = Model(inputs=inputs, outputs=Dense(3, activation="softmax", dtype="float32")(inputs))
    model.compile(loss="sparse_categorical_crossentropy", optimizer=SGD(learning_rate=1e-2, momentum=0.9))
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
