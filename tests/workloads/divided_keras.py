"""A workload of Keras whose faults are settings, for runs of several workers."""

import json
import os

import numpy as np
import tensorflow as tf
from divided_data import Divided


class Regression(Divided):
    backends = ("tensorflow",)

    def rank(self):
        return json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

    def make_model(self):
        layers = [tf.keras.layers.Dense(16, "tanh", name="hidden"), tf.keras.layers.Dense(1, name="out")]
        model = tf.keras.Sequential([tf.keras.Input((8,)), *layers])
        rng = np.random.default_rng(0)  # how Keras 2 seeds layers depends on what ran before in the process
        model.set_weights([rng.uniform(-0.5, 0.5, weight.shape) for weight in model.get_weights()])
        return model

    def make_optimizer(self, model):
        return tf.keras.optimizers.SGD(0.05, momentum=0.9)

    def loss(self, model, batch):
        return tf.reduce_mean(tf.square(model(batch["x"]) - batch["y"]))
