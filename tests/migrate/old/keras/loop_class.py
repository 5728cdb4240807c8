"""A tape loop in a class: model and optimizer are its attributes."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

mixed_precision.set_global_policy("mixed_float16")


class Trainer:
    def __init__(self):
        self.model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3, dtype="float32")])
        self.optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.01))
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = self.loss(y, logits)
            scaled_loss = self.optimizer.get_scaled_loss(loss)
        grads = tape.gradient(scaled_loss, self.model.trainable_variables)
        grads = self.optimizer.get_unscaled_gradients(grads)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    trainer = Trainer()
    for _ in range(4):
        trainer.train_step(x, y)
    return trainer.model.get_weights()
