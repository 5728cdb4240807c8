"""Small Gluon models for the tests of what is MXNet's alone; without MXNet nothing here is collected."""

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("mxnet") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def array():
    from unifiedamp_mxnet.mxnet_api import from_numpy, mx

    def make(values, ctx=None):
        return from_numpy(np.asarray(values, np.float32), ctx or mx.cpu())

    return make


@pytest.fixture
def net():
    """Make a Sequential of dense layers, 8 → 16 → 4, with weights from numpy."""
    from unifiedamp_mxnet.mxnet_api import from_numpy, gluon, mx

    def make(contexts=None, seed=0, cls=None):
        contexts = contexts or [mx.cpu(0)]
        rng = np.random.default_rng(seed)
        model = (cls or gluon.nn.HybridSequential)()
        model.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
        model.initialize(ctx=contexts)
        for param in model.collect_params().values():
            value = rng.normal(size=param.shape, scale=0.3).astype(np.float32)
            param.set_data(from_numpy(value, mx.cpu()))
        return model

    return make
