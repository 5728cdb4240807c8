"""A training function that scales the loss of a model that it is given, under the policy that its program has set."""

import numpy as np
import tensorflow as tf


def train(model, batches, learning_rate=0.1, optimizer="sgd", mixed_precision=True):
    loss_fn = tf.keras.losses.MeanSquaredError()
    if optimizer == "adam":
        optimizer = tf.keras.optimizers.Adam(learning_rate)
    elif optimizer == "sgd":
        optimizer = tf.keras.optimizers.SGD(learning_rate)
    if mixed_precision == True:  # noqa: E712
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    for x, y in batches:
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = loss_fn(y, tf.cast(predicted, tf.float32))
            if mixed_precision:
                loss = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        if mixed_precision:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def main(use_amp):
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(8, 4)).astype("float32"), np.ones((8, 1), "float32")) for _ in range(5)]
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3, "relu"), tf.keras.layers.Dense(1)])
    train(model, batches, mixed_precision=use_amp)
    return model.get_weights()
