"""A class that hands its network on to the constructor of the class before."""

import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")


class Base:
    def __init__(self, network):
        self.network = network
        self.optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.network(x, training=True) ** 2)
            scaled = self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.network.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables))


class Trainer(Base):
    def __init__(self, model, steps):
        super().__init__(model)
        self.steps = steps

    def run(self):
        for step in range(self.steps):
            self.step(tf.sin(tf.reshape(tf.range(12.0), (3, 4)) + step))


def main():
    net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2, dtype="float32")])
    Trainer(net, 3).run()
    return net.get_weights()
