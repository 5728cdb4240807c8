"""The optimizer is wrapped in an expression; its name is an argument."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision


def main(use_amp, name="sgd"):
    mixed_precision.set_global_policy("mixed_float16" if use_amp else "float32")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    inputs = layers.Input((6,))
    outputs = layers.Dense(3, dtype="float32")(layers.Dense(4, activation="relu")(inputs))
    model = tf.keras.models.Model(inputs, outputs)
    optimizer = tf.keras.optimizers.get(name)
    optimizer = mixed_precision.LossScaleOptimizer(optimizer) if use_amp else optimizer
    model.compile(optimizer=optimizer, loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
