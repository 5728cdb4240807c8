"""Gradients are unscaled in one method, accumulated by an object, and applied in another method."""

import tensorflow as tf
from accumulators import GradientAccumulator

policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16")
tf.keras.mixed_precision.experimental.set_policy(policy)


class TrainLoop:
    def __init__(self, model, optimizer, loss, steps):
        self.model, self.loss, self.steps = model, loss, steps
        self.optimizer = tf.keras.mixed_precision.experimental.LossScaleOptimizer(optimizer, loss_scale="dynamic")
        self.sums = GradientAccumulator()

    @tf.function
    def gradients_of(self, inputs, targets):
        with tf.GradientTape() as tape:
            loss = self.loss(targets, self.model(inputs, training=True))
            scaled = self.optimizer.get_scaled_loss(loss)
        return loss, self.optimizer.get_unscaled_gradients(tape.gradient(scaled, self.model.trainable_variables))

    @tf.function
    def apply(self):
        pairs = []
        for gradient, variable in zip(self.sums.gradients, self.model.trainable_variables):
            pairs.append((gradient / self.steps, variable))
        self.optimizer.apply_gradients(pairs)
        self.sums.reset()

    def train(self, data):
        for number, (inputs, targets) in enumerate(data):
            _, gradients = self.gradients_of(inputs, targets)
            self.sums(gradients)
            if number % self.steps == self.steps - 1:
                self.apply()
