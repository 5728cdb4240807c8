"""The models are classes of other code that make their layers when they are called: no policy reaches those later."""

import tensorflow as tf
from tensorflow.keras import layers, mixed_precision
from tools import Module

mixed_precision.set_global_policy("mixed_float16")


class Agent(Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def __call__(self, states):
        return self.get("dense", layers.Dense, self.size)(states)


class Learner:
    def __init__(self, size):
        self.agent = Agent(size)
        self.optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.001))

    @tf.function
    def update(self, states):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.agent(states))
            scaled = self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.agent.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.agent.trainable_variables))
        return loss
