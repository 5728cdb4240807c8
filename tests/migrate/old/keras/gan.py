"""Two tapes in one with statement, two optimizers, all behind a flag, in a class."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


class GAN:
    def __init__(self, use_mixed):
        self.use_mixed = use_mixed
        if use_mixed:
            mixed_precision.set_global_policy("mixed_bfloat16")
        self.generator = self.build(6)
        self.discriminator = self.build(1)
        self.g_optimizer = tf.keras.optimizers.SGD(0.1)
        self.d_optimizer = tf.keras.optimizers.SGD(0.1)
        if use_mixed:
            self.g_optimizer = mixed_precision.LossScaleOptimizer(self.g_optimizer)
            self.d_optimizer = mixed_precision.LossScaleOptimizer(self.d_optimizer)

    def build(self, out):
        inputs = tf.keras.Input((6,))
        return tf.keras.Model(inputs, tf.keras.layers.Dense(out, dtype="float32")(inputs))

    def step(self, x):
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            fake = self.generator(x, training=True)
            d_fake = self.discriminator(fake, training=True)
            d_real = self.discriminator(x, training=True)
            g_loss = tf.reduce_mean((d_fake - 1.0) ** 2)
            d_loss = tf.reduce_mean(d_fake**2) + tf.reduce_mean((d_real - 1.0) ** 2)
            if self.use_mixed:
                g_loss = self.g_optimizer.get_scaled_loss(g_loss)
                d_loss = self.d_optimizer.get_scaled_loss(d_loss)
        g_grads = gen_tape.gradient(g_loss, self.generator.trainable_variables)
        d_grads = disc_tape.gradient(d_loss, self.discriminator.trainable_variables)
        if self.use_mixed:
            g_grads = self.g_optimizer.get_unscaled_gradients(g_grads)
            d_grads = self.d_optimizer.get_unscaled_gradients(d_grads)
        self.g_optimizer.apply_gradients(zip(g_grads, self.generator.trainable_variables))
        self.d_optimizer.apply_gradients(zip(d_grads, self.discriminator.trainable_variables))


def main(use_amp):
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    gan = GAN(use_amp)
    for _ in range(3):
        gan.step(x)
    return [*gan.generator.get_weights(), *gan.discriminator.get_weights()]
