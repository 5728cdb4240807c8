"""A class that is given its network, and makes its optimizer."""

import tensorflow as tf
from tensorflow.keras import mixed_precision

policy = mixed_precision.Policy("mixed_float16")
mixed_precision.set_global_policy(policy)


class Trainer:
    def __init__(self, network, rate):
        self.network = network
        self.optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(rate))
        self.loss_fn = tf.keras.losses.MeanSquaredError()

    @tf.function
    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self.network(x, training=True))
            scaled_loss = self.optimizer.get_scaled_loss(loss)
        scaled = tape.gradient(scaled_loss, self.network.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(scaled)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables))
        return loss


def main():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(2, dtype="float32")])
    trainer = Trainer(model, 0.1)
    for step in range(5):
        x = tf.sin(tf.reshape(tf.range(24.0), (6, 4)) + step)
        trainer.train_step(x, tf.ones((6, 2)))
    return model.get_weights()
