"""The rewrite inside compile, with a fixed loss scale."""

import numpy as np
import tensorflow as tf
from tensorflow import keras


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    inputs = keras.Input((6,))
    net = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    net.compile(
        optimizer=tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(
            keras.optimizers.SGD(0.1), loss_scale=128.0
        ),
        loss="sparse_categorical_crossentropy",
    )
    net.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return net.get_weights()
