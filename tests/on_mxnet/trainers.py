"""Trainers, weights and batches for the tests beside this."""

import numpy as np


def sgd(model, lr=0.1, **settings):
    from unifiedamp_mxnet.mxnet_api import gluon

    return gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": lr, **settings})


def weights(model, ctx=None):
    params = model._collect_params_with_prefix().items()
    return {name: (param.data(ctx) if ctx else param.list_data()[0]).asnumpy().copy() for name, param in params}


def batch(seed=1):
    return np.random.default_rng(seed).normal(size=(6, 8)).astype(np.float32)
