"""A tape loop under Keras 2's loss scaling, with clipping, in tf.function."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

policy = mixed_precision.Policy("mixed_float16")
mixed_precision.set_global_policy(policy)
print("compute dtype:", policy.compute_dtype)


def make_model():
    inputs = tf.keras.Input((6,))
    x = layers.Dense(16, activation="relu", kernel_initializer=tf.keras.initializers.GlorotUniform(1))(inputs)
    outputs = layers.Dense(3, dtype="float32", kernel_initializer=tf.keras.initializers.GlorotUniform(2))(x)
    return tf.keras.Model(inputs, outputs)


def train(steps):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)).astype("float32"), rng.integers(0, 3, 32)
    model = make_model()
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    # The wrapper scales the loss.
    optimizer = mixed_precision.LossScaleOptimizer(optimizer)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = loss_object(y, predictions)
            scaled_loss = optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled_gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return [float(train_step(x, y)) for _ in range(steps)]
