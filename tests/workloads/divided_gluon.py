"""A workload of Gluon whose faults are settings, for runs of several workers."""

import os

import numpy as np
from divided_data import Divided

from unifiedamp_mxnet.distributed.shared_kvstore import native_kvstore
from unifiedamp_mxnet.mxnet_api import from_numpy, mx


def rank_of_kvstore():
    return native_kvstore().rank if os.environ.get("DMLC_ROLE") else 0


class Regression(Divided):
    backends = ("mxnet",)

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
