"""A class that distils one model into another in a tf.function, and sets the policy to float32 while it exports."""

import numpy as np
import tensorflow as tf


def get_class(name):
    return {"small": lambda units: lambda: make(units)}[name]


def make(units):
    inputs = tf.keras.Input((6,))
    hidden = tf.keras.layers.Dense(units, activation="relu")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3, dtype="float32")(hidden))


class Problem:
    def __init__(self, mixed_precision):
        self.mixed_precision = mixed_precision
        if mixed_precision:
            tf.keras.mixed_precision.set_global_policy("mixed_float16")
        student = get_class("small")(4)()
        teacher = get_class("small")(16)()
        self.student = student
        self.teacher = teacher
        self.optimizer = tf.keras.optimizers.SGD(0.1)
        if mixed_precision:
            self.optimizer = tf.keras.mixed_precision.LossScaleOptimizer(self.optimizer)

    @tf.function
    def train_step(self, x):
        wanted = self.teacher(x, training=False)
        with tf.GradientTape() as tape:
            logits = self.student(x, training=True)
            loss = tf.reduce_mean(tf.square(logits - wanted))
            if self.mixed_precision:
                loss = self.optimizer.get_scaled_loss(loss)
        grads = tape.gradient(loss, self.student.trainable_variables)
        if self.mixed_precision:
            grads = self.optimizer.get_unscaled_gradients(grads)
        self.optimizer.apply_gradients(zip(grads, self.student.trainable_variables))

    def export(self):
        old_policy = tf.keras.mixed_precision.global_policy()
        tf.keras.mixed_precision.set_global_policy("float32")
        exported = get_class("small")(4)()
        exported.set_weights(self.student.get_weights())
        tf.keras.mixed_precision.set_global_policy(old_policy)
        return exported


def main(use_amp):
    rng = np.random.default_rng(0)
    problem = Problem(use_amp)
    for _ in range(3):
        problem.train_step(tf.constant(rng.normal(size=(16, 6)).astype("float32")))
    exported = problem.export()
    assert exported.layers[1].compute_dtype == "float32"
    for model in (problem.student, problem.teacher):
        assert model.layers[1].compute_dtype == ("float16" if use_amp else "float32")
    return exported.get_weights()
