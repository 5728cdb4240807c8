"""A flag's branch names the policy, as the device wants it, and sets it."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers


def start(use_amp, on_tpu):
    if use_amp:
        policy = "mixed_bfloat16" if on_tpu else "mixed_float16"
        tf.keras.mixed_precision.set_global_policy(policy)
    return tf.distribute.get_strategy()


def main(use_amp, on_tpu=False):
    strategy = start(use_amp, on_tpu)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    with strategy.scope():
        inputs = layers.Input((6,))
        outputs = layers.Dense(3, dtype="float32")(layers.Dense(4, activation="relu")(inputs))
        model = tf.keras.models.Model(inputs, outputs)
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.1),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
