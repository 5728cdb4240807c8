"""A LossScaleOptimizer with a scale that starts low and grows, inside compile."""

import numpy as np
import tensorflow as tf

mp = tf.keras.mixed_precision
mp.set_global_policy("mixed_float16")


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(3, dtype="float32")])
    model.compile(
        optimizer=tf.keras.mixed_precision.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.5), initial_scale=4.0, dynamic_growth_steps=2
        ),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
