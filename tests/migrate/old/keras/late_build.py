"""A model class that is compiled first and built after; another is called once, to be built, before its loop."""

import numpy as np
import tensorflow as tf


class Net(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(units, activation="relu")
        self.out = tf.keras.layers.Dense(3, activation="softmax", dtype="float32")

    def build(self, shape):
        self.hidden.build(shape)
        self.out.build((None, self.hidden.units))
        self.built = True

    def call(self, inputs):
        return self.out(self.hidden(inputs))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = Net(8)
    optimizer = tf.keras.optimizers.SGD(0.1)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
    model.build((None, 6))
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    other = Net(4)
    sgd = tf.keras.optimizers.SGD(0.1)
    other(x[:1])
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, other(x, training=True)))
        gradients = tape.gradient(loss, other.trainable_variables)
        sgd.apply_gradients(zip(gradients, other.trainable_variables))
    return [*model.get_weights(), *other.get_weights()]
