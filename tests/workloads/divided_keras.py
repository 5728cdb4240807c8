"""A workload of Keras whose faults are settings, for runs of several workers."""

import json
import os
import random
import signal

import numpy as np
import tensorflow as tf


class Regression:
    backends = ("tensorflow",)

    def __init__(self, rows: int = 160, batch_size: int = 32, fault: str = "", at: int = 3, mark: str = ""):
        self.batch_size, self.fault, self.at, self.mark = batch_size, fault, at, mark
        rng = np.random.default_rng(0)
        self.x, self.w = rng.standard_normal((rows, 8), np.float32), np.arange(8, dtype=np.float32)

    def make_model(self):
        random.seed(0)  # keras.utils.set_random_seed would change how Keras 2 seeds layers from then on
        tf.random.set_seed(0)
        layers = [tf.keras.layers.Dense(16, "tanh", name="hidden"), tf.keras.layers.Dense(1, name="out")]
        return tf.keras.Sequential([tf.keras.Input((8,)), *layers])

    def make_optimizer(self, model):
        return tf.keras.optimizers.SGD(0.05, momentum=0.9)

    def loss(self, model, batch):
        return tf.reduce_mean(tf.square(model(batch["x"]) - batch["y"]))

    def batches(self, epoch):
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        rank = config.get("task", {}).get("index", 0)
        order = np.random.default_rng((epoch, rank if self.fault == "other order" else 0)).permutation(len(self.x))
        for number, start in enumerate(range(0, len(order), self.batch_size)):
            if self.fault == "stopped" and epoch and number == self.at and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if self.fault == "killed" and epoch and number == self.at and rank == 1 and not os.path.exists(self.mark):
                os.makedirs(self.mark)
                os.kill(os.getpid(), signal.SIGKILL)
            yield self.batch(order[start : start + self.batch_size], number)

    def batch(self, chosen, number):
        x = self.x[chosen]
        y = x @ self.w[:, None]
        if self.fault == "overflow" and number == self.at:
            y[-1] = 1e38  # a row of the last worker
        return {"x": x, "y": y}

    def evaluate(self, amp, model):
        with amp.inference(model):
            found = amp.to_numpy(model(amp.to_native(self.x)))
        return -float(np.square(found - self.x @ self.w[:, None]).mean())
