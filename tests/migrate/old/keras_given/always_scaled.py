"""A custom train_step in a subclassed model with its own scaled loss."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


class Custom(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean((y - y_pred) ** 2)
            scaled_loss = self.optimizer.get_scaled_loss(loss)
        grads = self.optimizer.get_unscaled_gradients(tape.gradient(scaled_loss, self.trainable_variables))
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}


def main():
    mixed_precision.set_global_policy("mixed_float16")
    inputs = tf.keras.Input((4,))
    model = Custom(inputs, tf.keras.layers.Dense(1, dtype="float32")(inputs))
    model.compile(optimizer=mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1)))
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    model.fit(x, x[:, :1], epochs=2, verbose=0)
    return model.get_weights()
