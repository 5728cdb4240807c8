"""Gradients of what many operators use: MXNet adds them in place, and its casts do not add."""

import re
import warnings

import numpy as np
import pytest
from trainers import sgd

import unifiedamp as ua
from unifiedamp_mxnet.layer_paths import named_parameters
from unifiedamp_mxnet.mxnet_api import NUMPY_API, gluon, mx


class Shared(gluon.HybridBlock):
    """Two dense layers; a parameter ``b``, or its exponential, meets the second one's outputs, one for each row."""

    def __init__(self, rows, joins):
        super().__init__()
        self.rows, self.joins = rows, joins
        self.dense = gluon.nn.Dense(4, in_units=4)
        self.b = gluon.Parameter("b", shape=(1, 4)) if NUMPY_API else self.params.get("b", shape=(1, 4))

    def compute(self, rows, b):
        return sum((i + 1) * self.joins(self.dense(row), b).sum() for i, row in enumerate(rows))

    if NUMPY_API:

        def forward(self, x):
            return self.compute([x[i : i + 1] for i in range(self.rows)], self.b.data(x.device))

    else:

        def hybrid_forward(self, F, x, b):
            return self.compute([F.slice_axis(x, axis=0, begin=i, end=i + 1) for i in range(self.rows)], b)


def added(row, b):
    return row + b if NUMPY_API else module_of(row).broadcast_add(row, b)


def added_exponential(row, b):
    return added(row, mx.np.exp(b) if NUMPY_API else module_of(b).exp(b))


def joined(row, b):
    return (mx.np.concatenate([row, b], axis=1) if NUMPY_API else module_of(row).concat(row, b, dim=1)) ** 2


def module_of(tensor):
    return mx.sym if isinstance(tensor, mx.sym.Symbol) else mx.nd


def gradients(policy, joins, rows, compiled, array):
    model, rng = Shared(rows, joins), np.random.default_rng(0)
    model.initialize()
    params = dict(named_parameters(model))
    for param in map(params.get, sorted(params)):
        param.set_data(array(rng.normal(size=param.shape, scale=0.3)))
    amp = ua.Amp("mxnet", policy)
    model, trainer = amp.prepare(model, sgd(model))
    x = array(rng.normal(size=(rows, 4)))

    def train():
        amp.backward(lambda: model(x), trainer)
        found = {name: amp.to_numpy(grad) for name, grad in amp.gradients(trainer).items()}
        amp.step(trainer)
        return found

    return (amp.compile(train) if compiled else train)()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("rows", [7, 12])
@pytest.mark.parametrize("joins", [added, added_exponential, joined])
def test_all_uses_count(joins, rows, compiled, array):
    wanted = gradients("float32", joins, rows, False, array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.CompileWarning)
        found = gradients("mixed_bfloat16", joins, rows, compiled, array)
    for name, value in wanted.items():
        assert np.linalg.norm(found[name] - value) <= 0.05 * np.linalg.norm(value), name


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2 traces without amp_multicast")
def test_a_block_that_trains_imperatively_is_told(array):
    with warnings.catch_warnings(record=True) as caught:  # pytest.warns would hide that this CPU has no bfloat16
        warnings.simplefilter("always")
        gradients("mixed_bfloat16", added, 12, True, array)
    said = [str(each.message) for each in caught if issubclass(each.category, ua.CompileWarning)]
    assert [text for text in said if re.search(r"Shared: '.*b' is used and cast so often .*trains imperatively", text)]
