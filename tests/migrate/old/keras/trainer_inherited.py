"""A class whose constructor is inherited, given a network that is made in the call; a second one after it."""

import tensorflow as tf
from tensorflow.keras import mixed_precision

mixed_precision.set_global_policy("mixed_float16")


def build(width):
    inputs = tf.keras.Input((4,))
    hidden = tf.keras.layers.Dense(width, activation="relu")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(2, dtype="float32")(hidden))


class Base:
    def __init__(self, network, optimizer):
        self.network = network
        self.optimizer = optimizer

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.network(x, training=True) - y) ** 2)
            scaled = self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.network.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables))


class Trainer(Base):
    def run(self):
        for step in range(4):
            x = tf.cos(tf.reshape(tf.range(24.0), (6, 4)) + step)
            self.step(x, tf.ones((6, 2)))
        return self.network.get_weights()


def main():
    optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    first = Trainer(build(5), optimizer).run()
    other = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9))
    second, third = build(3), build(2)
    return first + Trainer(second, other).run() + third.get_weights()
