"""The optimizer is made in a function, and rewritten where the model is compiled."""

import numpy as np
import tensorflow as tf


def get_optimizer(rate):
    return tf.keras.optimizers.SGD(rate, momentum=0.9)


def main(use_amp):
    rtx_optimizer = use_amp
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    inputs = tf.keras.layers.Input((6,))
    pred_model = tf.keras.Model(inputs=inputs, outputs=tf.keras.layers.Dense(3, activation="softmax")(inputs))
    opt = get_optimizer(0.1)
    if rtx_optimizer == True:  # noqa: E712
        opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
    pred_model.compile(optimizer=opt, loss=tf.keras.losses.SparseCategoricalCrossentropy())
    pred_model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return pred_model.get_weights()
