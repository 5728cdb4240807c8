"""Makes model and optimizer, and hands them to the trainer."""

import numpy as np
import tensorflow as tf
from engine import Trainer

import unifiedamp as ua


def build():
    return tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(1, dtype="float32")])


def before(flag):
    tf.keras.mixed_precision.set_global_policy("mixed_float16" if flag else "float32")
    model, optimizer = build(), tf.keras.optimizers.SGD(0.1, momentum=0.9)
    if flag:
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
    return train(model, optimizer, flag)


def after(flag):
    scale = ua.DynamicLossScale(initial_scale=1024.0) if flag else "none"
    amp = ua.Amp("tensorflow", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    with amp.scope():
        model = build()
    model, optimizer = amp.prepare(model, tf.keras.optimizers.SGD(0.1, momentum=0.9))
    return train(model, optimizer, flag)


def train(model, optimizer, flag):
    trainer = Trainer(model, optimizer, flag)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.normal(size=(8, 5)).astype("float32")
        trainer.train_step(x, x.sum(1, keepdims=True))
    return model.get_weights()
