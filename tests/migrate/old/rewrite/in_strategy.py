"""The rewrite in a strategy's scope; the model is trained behind it."""

import numpy as np
import tensorflow as tf


def main(use_amp):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :1].copy()
    params = {"fp16": use_amp}
    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.05)
        if params.get("fp16"):
            optimizer = tf.train.experimental.enable_mixed_precision_graph_rewrite(optimizer)
        model.compile(optimizer=optimizer, loss="mse")
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
