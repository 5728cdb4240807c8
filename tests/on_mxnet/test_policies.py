"""Policies on MXNet: what runs, layer and operator overrides, outputs, conversion for inference."""

import numpy as np
import pytest
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness
from unifiedamp_mxnet import capabilities, convert_model
from unifiedamp_mxnet.device import selection
from unifiedamp_mxnet.device.cpu_features import cpu_runs_bfloat16
from unifiedamp_mxnet.mxnet_api import NUMPY_API, autograd, dtype_name, gluon, mx
from unifiedamp_mxnet.precision import operations, policies

MIXED = ua.Policy(compute_dtype="bfloat16")


def low(value):
    """Round to bfloat16, in numpy: the oracle of what a cast does."""
    bits = np.asarray(value, np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def dense(x, weight, bias, cast):
    """One layer in float64, inputs and result rounded when it computes in bfloat16."""
    if not cast:
        return x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    return low(low(x).astype(np.float64) @ low(weight).T.astype(np.float64) + low(bias))


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("compute", "overrides", "cast"),
    [
        ("bfloat16", {}, (True, True)),
        ("bfloat16", {"0": "float32"}, (False, True)),
        ("bfloat16", {"1": "float32"}, (True, False)),
        ("float32", {"1": "bfloat16"}, (False, True)),
        ("float32", {"*": "bfloat16"}, (True, True)),
    ],
)
def test_each_layer_computes_where_it_was_told_to(net, array, hybrid, compute, overrides, cast):
    amp = ua.Amp("mxnet", ua.Policy(compute_dtype=compute, layer_overrides=overrides))
    model = amp.prepare(net())
    if hybrid:
        amp.compile(model)
    values, x = weights(model), batch()
    with amp.inference():
        output = model(array(x))
    assert dtype_name(output) == "float32"
    hidden = np.maximum(dense(x, values["0.weight"], values["0.bias"], cast[0]), 0).astype(np.float32)
    expected = dense(hidden, values["1.weight"], values["1.bias"], cast[1])
    other = dense(hidden, values["1.weight"], values["1.bias"], not cast[1])
    assert np.allclose(output.asnumpy(), expected, rtol=8e-3, atol=8e-3)
    if cast[0] is False:  # Only then is the second layer's input exact enough to tell the two apart.
        assert np.abs(output.asnumpy() - expected).max() < np.abs(output.asnumpy() - other).max()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("inner", ["float32", "bfloat16"])
def test_an_override_inside_an_overridden_block(net, array, hybrid, inner):
    outer = "bfloat16" if inner == "float32" else "float32"
    model = gluon.nn.HybridSequential()
    model.add(net())
    amp = ua.Amp("mxnet", MIXED.replace(layer_overrides={"0": outer, "0.1": inner}))
    amp.prepare(model)
    if hybrid:
        amp.compile(model)
    values, x = weights(model), batch()
    with amp.inference():
        output = model(array(x)).asnumpy()
    hidden = np.maximum(dense(x, values["0.0.weight"], values["0.0.bias"], outer == "bfloat16"), 0).astype(np.float32)
    expected, other = (
        dense(hidden, values["0.1.weight"], values["0.1.bias"], cast)
        for cast in (inner != "float32", inner == "float32")
    )
    assert np.abs(output - expected).mean() < np.abs(output - other).mean()


@pytest.mark.parametrize("hybrid", [False, True])
def test_gradients_pass_through_an_overridden_layer(net, array, hybrid):
    amp = ua.Amp("mxnet", ua.Policy(compute_dtype="bfloat16", layer_overrides={"1": "float32"}))
    model = net()
    trainer = sgd(model)
    amp.prepare(model, trainer)
    if hybrid:
        amp.compile(model)
    before = weights(model)
    amp.backward(lambda: model(array(batch())).sum(), trainer)
    amp.step(trainer)
    assert np.allclose(weights(model)["1.bias"], before["1.bias"] - 0.6, rtol=1e-5)
    assert all(not np.array_equal(weights(model)[k], before[k]) for k in before)


def test_another_policys_layer_overrides_in_its_region(net, array):
    amp = ua.Amp("mxnet", "float32")
    model = amp.prepare(net())
    x = array(batch())
    with amp.inference():
        plain = model(x).asnumpy()
    other = ua.Policy(compute_dtype="bfloat16", layer_overrides={"*": "float32"})
    with amp.inference(), amp.autocast(policy=other):
        assert np.array_equal(model(x).asnumpy(), plain)
    with amp.inference(), amp.autocast(policy="mixed_bfloat16"):
        assert not np.array_equal(model(x).asnumpy(), plain)


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
    with pytest.raises(ua.UnsupportedError, match="batch_dot and softmax"):
        ua.Amp("mxnet", MIXED.replace(op_overrides={"attention": "float32"}))


def test_an_override_reaches_a_hybridized_graph(net, array):
    model, x = net(), array(batch())
    model.hybridize()
    plain = model(x).asnumpy()
    with ua.Amp("mxnet", MIXED.replace(op_overrides={"linear": "float32"})).inference():
        assert np.array_equal(model(x).asnumpy(), plain)


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
    before = weights_of(model)
    first = amp.backward(lambda: ((model(x) - 1) ** 2).mean(), trainer)
    amp.step(trainer)
    for _ in range(20):
        last = amp.backward(lambda: ((model(x) - 1) ** 2).mean(), trainer)
        amp.step(trainer)
    after = weights_of(model)
    assert all(value.dtype == np.float32 for value in after.values())
    assert not np.array_equal(after["1.running_mean"], before["1.running_mean"])
    assert float(last.asnumpy().reshape(())) < 0.5 * float(first.asnumpy().reshape(()))
    with amp.inference():
        model(x)
    assert all(np.array_equal(weights_of(model)[k], after[k]) for k in after)


def weights_of(model):
    return {name: p.data().asnumpy().copy() for name, p in model._collect_params_with_prefix().items() if p._data}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", MIXED.replace(layer_overrides={"0": "float32"})])
def test_convert_model(net, array, policy):
    model, x = net(), array(batch())
    expected = model(x).asnumpy()
    before = dict(vars(model))
    converted = convert_model(model, x, policy=policy)
    assert dict(vars(model)) == before
    output = converted(x)
    assert dtype_name(output) == "float32"
    assert 1e-5 < np.abs(output.asnumpy() - expected).max() < 0.05
    amp = ua.Amp("mxnet", policy)
    prepared = amp.prepare(net())
    with amp.inference():
        assert np.array_equal(prepared(x).asnumpy(), output.asnumpy())
    converted.hybridize(static_alloc=True)
    assert np.array_equal(converted(x).asnumpy(), output.asnumpy())


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_a_converted_model_survives_a_file(net, array, tmp_path):
    x = array(batch())
    converted = convert_model(net(), x)
    converted.hybridize()
    output = converted(x).asnumpy()
    converted.export(str(tmp_path / "low"), remove_amp_cast=False)
    files = str(tmp_path / "low-symbol.json"), ["data"], str(tmp_path / "low-0000.params")
    assert np.array_equal(gluon.SymbolBlock.imports(*files)(x).asnumpy(), output)


def test_convert_model_refuses(net, array):
    with pytest.raises(ua.WrongObjectError, match=r"expected gluon\.HybridBlock, got list"):
        convert_model([], array(batch()))
    with pytest.raises(ua.WrongObjectError, match="give the arrays"):
        convert_model(net())
    with pytest.raises(ua.PolicyNotSupportedError, match="no float16 matrix product on CPU"):
        convert_model(net(), array(batch()), policy="mixed_float16")


@pytest.mark.parametrize("policy", ["mixed_float16", "float16", "bfloat16"])
def test_policies_that_cannot_run_on_cpu_name_the_nearest(policy):
    nearest = "mixed_bfloat16" if cpu_runs_bfloat16() else "float32"
    with pytest.raises(ua.PolicyNotSupportedError, match=nearest):
        ua.Amp("mxnet", policy)
    support = ua.Amp("mxnet", "float32").capabilities.policies
    assert not support[policy]
    assert nearest in support[policy].reason
    assert support[nearest]


def test_pure_bfloat16_has_no_optimizer_kernel(array):
    """The evidence behind the refusal: MXNet's SGD does not take bfloat16 weights."""
    from unifiedamp_mxnet.mxnet_api import base, cast

    weight = cast(array([1.0, 2.0]), "bfloat16")
    with pytest.raises((base.MXNetError, KeyError, TypeError)):
        optimizer = mx.optimizer.create("sgd", learning_rate=0.1)
        state = optimizer.create_state_multi_precision(0, weight)
        optimizer.update_multi_precision([0], [weight], [weight], [state])
        weight.wait_to_read()


@pytest.mark.parametrize("capability", [(7, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_a_gpu_is_told_from_a_cpu(monkeypatch, capability):
    monkeypatch.setattr(selection, "built_with_cuda", lambda: True)
    monkeypatch.setattr(selection, "compute_capability", lambda index: capability)
    supports = capabilities.declare(mx.gpu(0)).policies
    if capability >= (9, 0):
        assert not any(supports.values())
        assert "Hopper" in supports["float32"].reason
        return
    assert supports["mixed_float16"]
    assert "mixed_float16" in supports["mixed_bfloat16"].reason
    assert policies.default_policy(mx.gpu(0))[0] == "mixed_float16"


def test_a_gpu_without_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(selection, "built_with_cuda", lambda: False)
    with pytest.raises(ua.PolicyNotSupportedError, match=r"built without CUDA; use device='cpu'"):
        ua.Amp("mxnet", "float32", device="gpu")


@pytest.mark.skipif(not NUMPY_API, reason="MXNet 1.9 has no layout pass")
def test_the_layout_pass_is_on_while_a_graph_is_built(net, array, monkeypatch):
    import ctypes

    from unifiedamp_mxnet.mxnet_api import base
    from unifiedamp_mxnet.precision import graphs

    def is_on():
        flag = ctypes.c_bool()
        base.check_call(base._LIB.MXGetOptimizeLayout(ctypes.byref(flag)))
        return flag.value

    seen = []
    native = graphs.call_native
    monkeypatch.setattr(graphs, "call_native", lambda *args: seen.append(is_on()) or native(*args))
    amp = ua.Amp("mxnet", "mixed_bfloat16", backend_options={"mxnet": {"layout_optimization": True}})
    model = amp.compile(amp.prepare(net()))
    for _ in range(2):
        with amp.inference():
            model(array(batch()))
    assert seen == [True, False]
    assert not is_on()


def test_a_model_prepared_after_it_was_traced_gets_its_output_cast(net, array):
    amp = ua.Amp("mxnet", "mixed_bfloat16")
    model, x = net(), array(batch())
    model.hybridize()
    with amp.inference():
        assert dtype_name(model(x)) == "bfloat16"
    amp.prepare(model)
    with amp.inference():
        assert dtype_name(model(x)) == "float32"


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2 has no such operators for its arrays")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_operators_that_ignore_the_loss_scale_are_refused(array, policy):
    x, y = array(np.ones((2, 3))), array([0, 1])
    with ua.Amp("mxnet", policy, loss_scale=8.0).autocast(), pytest.raises(ua.UnsupportedError, match=r"gluon\.loss"):
        mx.nd.SoftmaxOutput(x, y)
    with ua.Amp("mxnet", policy).autocast():
        assert mx.nd.SoftmaxOutput(x, y).shape == (2, 3)


def test_the_plan_names_the_native_calls():
    amp = ua.Amp("mxnet", MIXED.replace(op_overrides={"softmax": "float32"}), loss_scale="dynamic", accumulate_steps=2)
    text = str(amp.explain())
    lists = "mxnet.amp.lists" if NUMPY_API else "mxnet.contrib.amp.lists"
    for part in (lists, "multi_all_finite", "grad_req", "hybridize(static_alloc=True", "update_on_kvstore=False"):
        assert part in text


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


@pytest.mark.parametrize("hybrid", [False, True])
def test_grad_req_add_that_is_set_after_prepare(net, array, hybrid):
    """Trains as "write" does, in bfloat16 too, whose casts lose the gradients that MXNet would add."""
    trained = []
    for adds in (False, True):
        amp, model = ua.Amp("mxnet", MIXED, accumulate_steps=2), net()
        model, trainer = amp.prepare(model, sgd(model))
        if hybrid:
            amp.compile(model)
        if adds:
            for param in model.collect_params().values():
                param.grad_req = "add"
        for seed in range(4):
            x = array(batch(seed))
            amp.backward(lambda model=model, x=x: ((model(x) - 1) ** 2).mean(), trainer)
            amp.step(trainer)
        assert amp.applied_steps == 2
        trained.append(weights(model))
    for name, value in trained[0].items():
        np.testing.assert_allclose(trained[1][name], value, rtol=1e-6, atol=1e-7)
        assert np.abs(value - weights(net())[name]).max() > 1e-4
