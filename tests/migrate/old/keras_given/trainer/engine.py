"""A trainer that is handed model and optimizer; its loss is scaled behind a flag, its gradients are clipped."""

import tensorflow as tf


class Trainer:
    def __init__(self, model, optimizer, mixed):
        self.model = model
        self.optimizer = optimizer
        self.mixed = mixed

    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
            if self.mixed:
                scaled_loss = self.optimizer.get_scaled_loss(loss)
        if self.mixed:
            scaled_gradients = tape.gradient(scaled_loss, self.model.trainable_variables)
            gradients = self.optimizer.get_unscaled_gradients(scaled_gradients)
        else:
            gradients = tape.gradient(loss, self.model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.2)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss
