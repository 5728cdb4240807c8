"""The optimizer is made and wrapped at the top of the file, before the policy; a method compiles with it."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

opt = tf.keras.optimizers.SGD(learning_rate=0.1)
opt = mixed_precision.LossScaleOptimizer(opt)
mixed_precision.set_global_policy("mixed_bfloat16")


class Receiver:
    def __init__(self):
        self.x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
        self.y = self.x[:, :3].argmax(axis=1)

    def build_model(self):
        model = tf.keras.Sequential(
            [layers.Input(shape=(6,)), layers.Dense(8, activation="relu"), layers.Dense(3, dtype="float32")]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=opt, loss=loss)
        return model

    def train(self):
        model = self.build_model()
        model.fit(self.x, self.y, epochs=3, shuffle=False, verbose=0)
        return model


def main():
    return Receiver().train().get_weights()
