"""A ``forward`` that was set on a block itself: the session's casts are around it, and it is back afterwards."""

import copy
import pickle

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import NUMPY_API, gluon, mx


class Tenfold:
    """Ten times what a block answers, as its own method."""

    def __init__(self, block):
        self.block = block

    def __call__(self, x, *_):
        return type(self.block).forward(self.block, x) * 10


class Plain(gluon.Block):
    """A block that is not hybrid."""

    def __init__(self):
        super().__init__()
        self.dense = gluon.nn.Dense(2, in_units=2)

    def forward(self, x):
        return self.dense(x)


def prepared(layer, policy="mixed_bfloat16;layers=*:float32;emulate=true"):
    model = gluon.nn.HybridSequential() if isinstance(layer, gluon.HybridBlock) else gluon.nn.Sequential()
    model.add(layer)
    model.initialize(mx.init.One())
    layer.forward = Tenfold(layer)
    amp = ua.Amp("mxnet", policy, loss_scale="none")
    return amp, amp.prepare(model)


def answer(amp, model):
    with amp.inference(model):
        return float(amp.to_numpy(model(amp.to_native(np.ones((1, 2), np.float32))))[0, 0])


LAYERS = [lambda: gluon.nn.Dense(2, in_units=2), Plain]


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("hybridized", [False, True])
def test_it_runs_in_an_overridden_layer(make, hybridized):
    layer = make()
    amp, model = prepared(layer)
    if hybridized:
        model.hybridize()
    assert answer(amp, model) == 20.0
    amp.close()
    assert isinstance(layer.forward, Tenfold)


@pytest.mark.parametrize("make", LAYERS)
def test_it_runs_under_two_sessions_and_is_back_after_both(make):
    layer = make()
    amp, model = prepared(layer)
    other = ua.Amp("mxnet", "mixed_bfloat16;layers=*:float32;emulate=true", loss_scale="none")
    assert answer(other, other.prepare(model)) == 20.0
    other.close()
    assert answer(amp, model) == 20.0
    amp.close()
    assert isinstance(layer.forward, Tenfold)


@pytest.mark.parametrize("make", LAYERS)
def test_copies_have_it(make):
    layer = make()
    amp, _ = prepared(layer)
    copied = copy.deepcopy(layer)
    assert copied.forward._own.block is copied
    assert answer(amp, copied) == 20.0


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2 pickles no block")
def test_a_pickled_block_has_it_without_a_session():
    _, model = prepared(Plain())
    assert isinstance(pickle.loads(pickle.dumps(model))[0].forward, Tenfold)
