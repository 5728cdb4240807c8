"""The rewrite around an optimizer that is made in the same line."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.optimizers import Adam


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(3, activation="softmax")])
    opt = tf.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite(opt=Adam(0.01), loss_scale="dynamic")
    model.compile(opt, loss=["sparse_categorical_crossentropy"], metrics=["acc"])
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
