"""Model and optimizer are made in the scope of a distribution strategy."""

import numpy as np
import tensorflow as tf


def main():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(3, dtype="float32")])
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(0.1),
        )
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
