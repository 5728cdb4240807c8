"""Actor, critic and their target networks, made line by line: the targets compute as the trained ones do."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

mixed_precision.set_global_policy("mixed_bfloat16")


def build_actor(size):
    inputs = tf.keras.Input((4,))
    return tf.keras.Model(inputs, layers.Dense(size, dtype="float32")(layers.Dense(6, activation="tanh")(inputs)))


def build_critic(size):
    inputs = tf.keras.Input((4,))
    return tf.keras.Model(inputs, layers.Dense(1, dtype="float32")(layers.Dense(size, activation="tanh")(inputs)))


class Learner:
    def __init__(self, size):
        self.actor = build_actor(size)
        self.critic = build_critic(size)
        self.target_actor = build_actor(size)
        self.target_critic = build_critic(size)
        self.actor_optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
        self.critic_optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def improve(self, states):
        with tf.GradientTape() as tape:
            wanted = self.target_actor(states, training=False) + 1.0
            loss = tf.reduce_mean((self.actor(states, training=True) - wanted) ** 2)
            scaled = self.actor_optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.actor.trainable_variables)
        gradients = self.actor_optimizer.get_unscaled_gradients(gradients)
        self.actor_optimizer.apply_gradients(zip(gradients, self.actor.trainable_variables))
        return loss

    @tf.function
    def judge(self, states):
        with tf.GradientTape() as tape:
            wanted = self.target_critic(states, training=False) * 0.9 + 0.1
            loss = tf.reduce_mean((self.critic(states, training=True) - wanted) ** 2)
            scaled = self.critic_optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.critic.trainable_variables)
        gradients = self.critic_optimizer.get_unscaled_gradients(gradients)
        self.critic_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables))
        return loss


def main():
    learner, numbers = Learner(5), np.random.default_rng(3)
    for _ in range(5):
        states = tf.constant(numbers.normal(size=(8, 4)).astype("float32"))
        learner.improve(states)
        learner.judge(states)
    targets = (learner.target_actor, learner.target_critic)
    computes = [float(layer.compute_dtype == "bfloat16") for model in targets for layer in model.layers]
    return [*learner.actor.get_weights(), *learner.critic.get_weights(), np.array(computes)]
