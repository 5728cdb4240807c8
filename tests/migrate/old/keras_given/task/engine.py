"""A task of a larger framework: its step is called with the model and the optimizer, and keeps its signature."""

import tensorflow as tf
from tensorflow.keras import mixed_precision


class Task:
    def train_step(self, inputs, model, optimizer, metrics=None):
        raise NotImplementedError


class Regression(Task):
    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = tf.reduce_mean(tf.square(tf.cast(outputs, tf.float32) - labels))
            scaled_loss = loss / tf.distribute.get_strategy().num_replicas_in_sync
            # Scaled where the optimizer scales.
            if isinstance(optimizer, mixed_precision.LossScaleOptimizer):
                scaled_loss = optimizer.get_scaled_loss(scaled_loss)

        tvars = model.trainable_variables
        grads = tape.gradient(scaled_loss, tvars)
        if isinstance(optimizer, mixed_precision.LossScaleOptimizer):
            grads = optimizer.get_unscaled_gradients(grads)
        optimizer.apply_gradients(list(zip(grads, tvars)))
        return {"loss": loss, "step": optimizer.iterations}
