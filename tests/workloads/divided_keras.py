"""A workload of Keras whose faults are settings, for runs of several workers."""

import json
import os
import random

import tensorflow as tf
from divided_data import Divided


class Regression(Divided):
    backends = ("tensorflow",)

    def rank(self):
        return json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

    def make_model(self):
        random.seed(0)  # keras.utils.set_random_seed would change how Keras 2 seeds layers from then on
        tf.random.set_seed(0)
        layers = [tf.keras.layers.Dense(16, "tanh", name="hidden"), tf.keras.layers.Dense(1, name="out")]
        return tf.keras.Sequential([tf.keras.Input((8,)), *layers])

    def make_optimizer(self, model):
        return tf.keras.optimizers.SGD(0.05, momentum=0.9)

    def loss(self, model, batch):
        return tf.reduce_mean(tf.square(model(batch["x"]) - batch["y"]))
