"""A model that takes its own steps by the optimizer that it is compiled with."""

import tensorflow as tf


class Autoencoder(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs - y))
            if hasattr(self.optimizer, "get_scaled_loss"):
                scaled = self.optimizer.get_scaled_loss(loss)
            else:
                scaled = loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        if hasattr(self.optimizer, "get_unscaled_gradients"):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}
