"""Model and optimizer are attributes of a trainer, the policy is set in its constructor."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers
from tensorflow.keras.mixed_precision import set_global_policy


class Trainer:
    def __init__(self, lr):
        set_global_policy("mixed_float16")
        self.lr = lr
        self.model = self.build()

    def build(self):
        model = tf.keras.models.Sequential()
        model.add(layers.Dense(8, activation="relu", input_shape=(6,)))
        model.add(layers.Dense(3, dtype="float32"))
        return model

    def train(self, x, y):
        self.model.compile(
            optimizer=tf.keras.optimizers.Adam(learning_rate=self.lr),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        self.model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    trainer = Trainer(0.01)
    trainer.train(x, y)
    return trainer.model.get_weights()
