"""A class whose export sets the policy to float32 for another model, and puts it back."""

import numpy as np
import tensorflow as tf


def make():
    inputs = tf.keras.Input((6,))
    hidden = tf.keras.layers.Dense(8, activation="relu")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3, dtype="float32")(hidden))


class Problem:
    def __init__(self, mixed_precision):
        if mixed_precision:
            tf.keras.mixed_precision.set_global_policy("mixed_float16")
        self.model = make()
        self.model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def fit(self, x, y):
        self.model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)

    def export(self):
        old_policy = tf.keras.mixed_precision.global_policy()
        tf.keras.mixed_precision.set_global_policy("float32")
        exported = make()
        exported.set_weights(self.model.get_weights())
        tf.keras.mixed_precision.set_global_policy(old_policy)
        return exported


def main(use_amp):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    problem = Problem(use_amp)
    problem.fit(x, y)
    exported = problem.export()
    assert exported.layers[1].compute_dtype == "float32"
    assert problem.model.layers[1].compute_dtype == ("float16" if use_amp else "float32")
    problem.fit(x, y)
    return [*exported.get_weights(), *problem.model.get_weights()]
