"""A model that overrides compile and passes its optimizer to super().compile."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

mixed_precision.set_global_policy("mixed_bfloat16")


class Tracker(tf.keras.Model):
    def __init__(self, net, **kwargs):
        super().__init__(**kwargs)
        self.net = net

    def compile(self, opt, box_loss, **kwargs):
        super().compile(optimizer=opt, loss=box_loss, **kwargs)
        self.box_loss = box_loss

    def call(self, x):
        return self.net(x)


def box_loss(y, boxes):
    return tf.reduce_sum(tf.square(y - boxes))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    inputs = tf.keras.Input((6,))
    net = tf.keras.Model(inputs, layers.Dense(4, dtype="float32")(layers.Dense(8, activation="relu")(inputs)))
    opt = tf.keras.optimizers.SGD(learning_rate=1e-3)
    model = Tracker(net)
    model.build((None, 6))
    model.compile(opt, box_loss)
    model.fit(x, x[:, :4], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return net.get_weights()
