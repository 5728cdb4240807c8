"""A model that takes its own steps, compiled and fitted in the same file."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


class Net(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            scaled_loss = loss
            if isinstance(self.optimizer, mixed_precision.LossScaleOptimizer):
                scaled_loss = self.optimizer.get_scaled_loss(scaled_loss)
        train_vars = self.trainable_variables
        gradients = tape.gradient(scaled_loss, train_vars)
        if isinstance(self.optimizer, mixed_precision.LossScaleOptimizer):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, train_vars))
        return {"loss": loss}


def main(use_amp):
    if use_amp:
        mixed_precision.set_global_policy("mixed_float16")
    inputs = tf.keras.Input((5,))
    hidden = tf.keras.layers.Dense(7, activation="tanh")(inputs)
    model = Net(inputs, tf.keras.layers.Dense(1, dtype="float32")(hidden))
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    x = np.random.default_rng(2).normal(size=(24, 5)).astype("float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
