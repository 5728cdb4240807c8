"""Both branches set a policy; the loss scale is given to the optimizer."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras


def main(use_amp):
    args = argparse.Namespace(fp16=use_amp, lr=0.1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    if args.fp16:
        keras.mixed_precision.set_global_policy("mixed_float16")
    else:
        keras.mixed_precision.set_global_policy("float32")

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    optimizer = tf.keras.optimizers.SGD(args.lr)
    if args.fp16:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=128.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=optimizer)
    model.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0)
    return model.get_weights()
