"""A workload of Gluon whose faults are settings, for runs of several workers."""

import os
import signal

import numpy as np

from unifiedamp_mxnet.distributed.shared_kvstore import native_kvstore
from unifiedamp_mxnet.mxnet_api import from_numpy, mx


def rank_of_kvstore():
    return native_kvstore().rank if os.environ.get("DMLC_ROLE") else 0


class Regression:
    backends = ("mxnet",)

    def __init__(self, rows: int = 160, batch_size: int = 32, fault: str = "", at: int = 3):
        self.batch_size, self.fault, self.at = batch_size, fault, at
        rng = np.random.default_rng(0)
        self.x, self.w = rng.standard_normal((rows, 8), np.float32), np.arange(8, dtype=np.float32)

    def rank(self):
        return int(os.environ.get("DMLC_WORKER_ID", 0))

    def make_model(self):
        from mxnet.gluon import nn

        model = nn.HybridSequential()
        model.add(nn.Dense(16, "tanh", in_units=0 if self.fault == "no shape" else 8), nn.Dense(1, in_units=16))
        model.initialize()
        rng = np.random.default_rng(rank_of_kvstore())  # all workers train the first one's
        for param in model.collect_params().values() if self.fault != "no shape" else ():
            param.set_data(from_numpy(rng.normal(0, 0.3, param.shape).astype(np.float32), mx.cpu()))
        return model

    def make_optimizer(self, model):
        from mxnet import gluon

        settings = {"learning_rate": 0.05, "momentum": 0.9}
        if self.fault != "two optimizers":
            return gluon.Trainer(model.collect_params(), "sgd", settings)
        return [gluon.Trainer(layer.collect_params(), "sgd", settings) for layer in model]

    def loss(self, model, batch):
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()

    def batches(self, epoch):
        order = np.random.default_rng((epoch, self.rank() if self.fault == "other order" else 0))
        order = order.permutation(len(self.x))
        for number, start in enumerate(range(0, len(order), self.batch_size)):
            if self.fault == "stopped" and epoch and number == self.at and self.rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
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
