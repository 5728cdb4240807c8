"""A training for each of several rates, by a class."""

import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")


class Experiment:
    def __init__(self, model, rate):
        self.model = model
        self.optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(rate))

    def fit(self, steps):
        for step in range(steps):
            x = tf.sin(tf.reshape(tf.range(12.0), (3, 4)) + step)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.model(x, training=True) ** 2)
                scaled_loss = self.optimizer.get_scaled_loss(loss)
            gradients = tape.gradient(scaled_loss, self.model.trainable_variables)
            gradients = self.optimizer.get_unscaled_gradients(gradients)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))


def main():
    found = []
    for rate in (0.1, 0.2):
        net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2, dtype="float32")])
        Experiment(net, rate).fit(3)
        found += net.get_weights()
    return found
