"""Both branches of a flag make a policy object, which is read behind them."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import mixed_precision


def main(use_amp):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    if use_amp:
        print("mixed precision")
        policy = mixed_precision.Policy("mixed_float16")
        mixed_precision.set_global_policy(policy)
    else:
        policy = mixed_precision.Policy("float32")
        mixed_precision.set_global_policy(policy)
    model = tf.keras.Sequential(
        [tf.keras.Input((6,)), tf.keras.layers.Dense(8), tf.keras.layers.Dense(3, activation="softmax", dtype="float32")]
    )
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return [*model.get_weights(), np.array(policy.compute_dtype == "float16")]
