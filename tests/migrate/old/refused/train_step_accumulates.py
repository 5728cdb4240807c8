"""A model that adds up gradients over steps, and applies the sum."""

import tensorflow as tf
from tensorflow.keras import mixed_precision

mixed_precision.set_global_policy("mixed_float16")


class Accumulating(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        self.steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
            scaled_loss = self.optimizer.get_scaled_loss(loss)
        grads = self.optimizer.get_unscaled_gradients(tape.gradient(scaled_loss, self.trainable_variables))
        for total, gradient in zip(self.totals, grads):
            total.assign_add(gradient)
        if self.steps % 4 == 0:
            self.optimizer.apply_gradients(zip(self.totals, self.trainable_variables))
        return {"loss": loss}


def main(x, y):
    inputs = tf.keras.Input((4,))
    model = Accumulating(inputs, tf.keras.layers.Dense(1, dtype="float32")(inputs))
    model.compile(optimizer=mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1)))
    model.fit(x, y)
