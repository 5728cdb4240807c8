"""Operators on MXNet: what computes in bfloat16, what an override changes, what is refused by name."""

import numpy as np
import pytest
from trainers import batch, sgd

import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness
from unifiedamp_mxnet.mxnet_api import NUMPY_API, autograd, dtype_name, gluon, mx
from unifiedamp_mxnet.precision import operations

MIXED = ua.Policy(compute_dtype="bfloat16")


@pytest.mark.parametrize("op", sorted(operations.BFLOAT16_KERNELS - {"batch_norm"}))
def test_operators_that_may_compute_in_bfloat16_do(op):
    harness = load_harness("mxnet")
    amp = ua.Amp("mxnet", MIXED.replace(op_overrides={op: "compute"}))
    with amp.autocast():
        assert harness.run_op(op) == "bfloat16"
    with ua.Amp("mxnet", MIXED.replace(op_overrides={op: "float32"})).autocast():
        assert harness.run_op(op) == "float32"


@pytest.mark.parametrize("op", sorted(operations.BFLOAT16_KERNELS - {"batch_norm"}))
def test_their_gradients_are_those_of_float32(op, array):
    """No operator that we send to bfloat16 may lose its gradient there."""
    from unifiedamp_mxnet.conformance.operations import OPERATIONS

    x = array(np.linspace(0.1, 1.0, 64).reshape(8, 8))
    x.attach_grad()
    gradients = []
    for choice in ("float32", "compute"):
        with ua.Amp("mxnet", MIXED.replace(op_overrides={op: choice})).autocast():
            y = (OPERATIONS[op](x) * 2).sum()
        y.backward()
        gradients.append(x.grad.asnumpy().copy())
    assert np.isfinite(gradients[0]).all()
    assert np.allclose(*gradients, rtol=0.06, atol=0.06)


@pytest.mark.parametrize("word", ["relu", "sigmoid", "tanh", "softplus", "gelu"])
def test_an_override_of_one_function_of_an_operator(word):
    """``Activation`` and ``LeakyReLU`` are several functions each; the others run as without the override."""
    calls = {("Activation", kind) for kind in ("relu", "sigmoid", "tanh", "softrelu")}
    calls |= {("LeakyReLU", kind) for kind in ("leaky", "elu", "gelu")}
    own = {target[1:] for target in operations.VOCABULARY[word] if isinstance(target, tuple)}

    def dtypes(policy):
        found = {}
        for given in ("float32", "bfloat16"):
            x = mx.nd.ones((2, 8)).astype("float32")
            with ua.Amp("mxnet", policy).autocast():
                x = x if given == "float32" else mx.nd.FullyConnected(x, x, no_bias=True, num_hidden=2)
                for name, kind in calls - {(name, kind) for name, _ in calls for _, kind in own}:
                    found[given, name, kind] = dtype_name(getattr(mx.nd, name)(x, act_type=kind))
        return found

    assert dtypes(MIXED.replace(op_overrides={word: "float32"})) == dtypes(MIXED)


def test_operators_without_a_kernel_are_refused_by_name():
    for op in ("matmul", "conv_transpose", "layer_norm"):
        with pytest.raises(ua.UnsupportedError, match=f"op_overrides.{op}"):
            ua.Amp("mxnet", MIXED.replace(op_overrides={op: "compute"}))
    if not NUMPY_API:
        with pytest.raises(ua.UnsupportedError, match="by a bfloat16 weight; keep its layers in float32"):
            ua.Amp("mxnet", ua.Policy.parse("bfloat16;update=kahan;ops=conv_transpose:float32"))
    with pytest.raises(ua.UnsupportedError, match="batch_dot and softmax"):
        ua.Amp("mxnet", MIXED.replace(op_overrides={"attention": "float32"}))


def test_an_override_reaches_a_hybridized_graph(net, array):
    model, x = net(), array(batch())
    model.hybridize()
    plain = model(x).asnumpy()
    with ua.Amp("mxnet", MIXED.replace(op_overrides={"linear": "float32"})).inference():
        assert np.array_equal(model(x).asnumpy(), plain)


def initialized(model):
    """Return name → value of the parameters whose initialization is not deferred."""
    return {name: p.data().asnumpy().copy() for name, p in model._collect_params_with_prefix().items() if p._data}


@pytest.mark.parametrize("hybrid", [False, True])
def test_batch_norm_trains_with_float32_statistics(array, hybrid):
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Activation("relu"))
    model.add(gluon.nn.Flatten(), gluon.nn.Dense(2))
    model.initialize(mx.init.Xavier())
    amp = ua.Amp("mxnet", "mixed_bfloat16")
    trainer = sgd(model)
    amp.prepare(model, trainer)
    if hybrid:
        amp.compile(model)
    x = array(np.random.default_rng(0).normal(size=(16, 1, 6, 6)) + 3)
    before = initialized(model)
    first = amp.backward(lambda: ((model(x) - 1) ** 2).mean(), trainer)
    amp.step(trainer)
    for _ in range(20):
        last = amp.backward(lambda: ((model(x) - 1) ** 2).mean(), trainer)
        amp.step(trainer)
    after = initialized(model)
    assert all(value.dtype == np.float32 for value in after.values())
    assert not np.array_equal(after["1.running_mean"], before["1.running_mean"])
    assert float(last.asnumpy().reshape(())) < 0.5 * float(first.asnumpy().reshape(()))
    with amp.inference():
        model(x)
    assert all(np.array_equal(initialized(model)[k], after[k]) for k in after)


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2 has no such operators for its arrays")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_operators_that_ignore_the_loss_scale_are_refused(array, policy):
    x, y = array(np.ones((2, 3))), array([0, 1])
    with ua.Amp("mxnet", policy, loss_scale=8.0).autocast(), pytest.raises(ua.UnsupportedError, match=r"gluon\.loss"):
        mx.nd.SoftmaxOutput(x, y)
    with ua.Amp("mxnet", policy).autocast():
        assert mx.nd.SoftmaxOutput(x, y).shape == (2, 3)


def test_custom_functions():
    seen = []

    @ua.amp_function(cast_inputs="float32")
    def scaled(x, factor):
        seen.append(dtype_name(x))
        return x * factor

    class Double(autograd.Function):
        def forward(self, x):
            seen.append(dtype_name(x))
            return x * 2

        def backward(self, dy):
            return dy * 2

    double = ua.amp_function(Double, cast_inputs="float32")
    harness = load_harness("mxnet")
    amp = ua.Amp("mxnet", "mixed_bfloat16")
    from unifiedamp_mxnet.mxnet_api import cast, from_numpy

    x = from_numpy(np.ones((2, 2), np.float32), mx.cpu())
    x.attach_grad()
    with amp.autocast():
        y = scaled(cast(x, "bfloat16"), 3.0)
        z = double()(cast(x, "bfloat16")).sum()
    assert seen == ["float32", "float32"]
    assert (harness.dtype_of(y), harness.dtype_of(z)) == ("float32", "float32")
    z.backward()
    assert x.grad.asnumpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]
    scaled(cast(x, "bfloat16"), 3.0)
    assert seen[-1] == "bfloat16"
