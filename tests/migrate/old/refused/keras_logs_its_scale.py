"""The branch with AMP also logs the scale; both branches clip, and what the clipping gives is logged behind them."""

import tensorflow as tf
from tensorflow.keras import mixed_precision


class MainLoop:
    def __init__(self, network, mixed):
        self.mixed = mixed
        if self.mixed:
            mixed_precision.set_global_policy("mixed_float16")
        self.model = network()
        self.optimizer = tf.keras.optimizers.Adam(0.001)
        if self.mixed:
            self.optimizer = mixed_precision.LossScaleOptimizer(self.optimizer)

    def step(self, x, metrics):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x, training=True))
            if self.mixed:
                scaled = self.optimizer.get_scaled_loss(loss)
        if self.mixed:
            gradients = self.optimizer.get_unscaled_gradients(tape.gradient(scaled, self.model.trainable_variables))
            gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
            metrics.update({"scale": self.optimizer.loss_scale})
        else:
            gradients = tape.gradient(loss, self.model.trainable_variables)
            gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
        metrics.update({"norm": norm})
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
