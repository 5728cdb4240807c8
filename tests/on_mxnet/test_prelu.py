"""``PReLU`` inside graphs, where MXNet itself gives ``alpha`` a wrong gradient: it trains right, or is refused."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import gluon, mx

POLICIES = ["float32", "mixed_bfloat16;emulate=true", "mixed_float16;emulate=true;loss_scale=8.0"]
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def built():
    """A model with a layer before ``PReLU``, and one after it."""
    mx.random.seed(0)
    inner = gluon.nn.HybridSequential()
    inner.add(gluon.nn.Dense(32, in_units=16), gluon.nn.PReLU(), gluon.nn.Dense(8, in_units=32))
    model = gluon.nn.HybridSequential()
    model.add(inner, gluon.nn.Dense(4, in_units=8))
    model.initialize(mx.init.Uniform(0.5))
    return model


def alphas(policy, prepare=lambda amp, model: None, compiled=False):
    """Train; return ``alpha`` after each step, and the warnings."""
    amp = ua.Amp("mxnet", policy)
    model = built()
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=None)
    model, trainer = amp.prepare(model, trainer)
    prepare(amp, model)

    def train(x):
        amp.backward(lambda: (model(x) ** 2).mean(), trainer)
        amp.step(trainer)

    step, (alpha,) = amp.compile(train) if compiled else train, model[0][1].collect_params().values()
    found = []
    for _ in range(4):
        step(amp.to_native(X))
        found.append(float(np.ravel(amp.to_numpy(alpha.data()))[0]))
    amp.close()
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_compiled_step_trains_it_as_an_eager_one(policy):
    eager = alphas(policy)
    assert abs(eager[-1] - 0.25) > 0.01
    with pytest.warns(ua.PolicyWarning, match=r"wrong gradient for PReLU inside a larger graph \(0.1\)"):
        compiled = alphas(policy, compiled=True)
    assert compiled == pytest.approx(eager, rel=1e-5)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_model_that_is_hybridized_later_trains_it_right(policy):
    hybrid = alphas(policy, lambda amp, model: model.hybridize())
    assert hybrid == pytest.approx(alphas(policy), rel=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_that_was_hybridized_is_refused(policy):
    amp = ua.Amp("mxnet", policy)
    model = built()
    model.hybridize()
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=None)
    with pytest.raises(ua.PrepareError, match=r"holds PReLU \(0.1\).*hybridize\(False\)"):
        amp.prepare(model, trainer)
    model.hybridize(False)
    amp.prepare(model, trainer)


def test_mxnet_itself_is_wrong():
    """The evidence: once this fails, what is refused and left imperative can be compiled."""
    found = []
    for hybrid in (False, True):
        model = built()
        model.hybridize(hybrid)
        (alpha,) = model[0][1].collect_params().values()
        x = ua.Amp("mxnet", "float32").to_native(X)
        with mx.autograd.record():
            loss = (model(x) ** 2).mean()
        loss.backward()
        found.append(float(np.ravel(alpha.grad().asnumpy())[0]))
    assert found[1] == pytest.approx(0.25 * found[0], rel=1e-4)
