"""Policies on MXNet: what runs on which device, and what the plan says of it."""

import numpy as np
import pytest
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness
from unifiedamp_mxnet import capabilities
from unifiedamp_mxnet.device import selection
from unifiedamp_mxnet.device.cpu_features import cpu_runs_bfloat16
from unifiedamp_mxnet.mxnet_api import NUMPY_API, dtype_name, gluon, mx
from unifiedamp_mxnet.precision import policies

MIXED = ua.Policy(compute_dtype="bfloat16")


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


def test_the_plan_names_the_native_calls():
    amp = ua.Amp("mxnet", MIXED.replace(op_overrides={"softmax": "float32"}), loss_scale="dynamic", accumulate_steps=2)
    text = str(amp.explain())
    lists = "mxnet.amp.lists" if NUMPY_API else "mxnet.contrib.amp.lists"
    for part in (lists, "multi_all_finite", "grad_req", "hybridize(static_alloc=True", "update_on_kvstore=False"):
        assert part in text


def test_grad_req_add_that_is_set_inside_a_region(array):
    """The region has begun, so "write" is not set again: 16-bit gradients that are in the window already are zeroed."""
    policy = load_harness("mxnet").pure_policies["float16"]
    amp = ua.Amp("mxnet", policy, loss_scale=4.0, master_weights=True)
    with amp.scope():
        model = gluon.nn.Dense(1, in_units=2, use_bias=False)
        model.initialize(mx.init.One())
        trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.125})
    model, trainer = amp.prepare(model, trainer)
    with amp.autocast():
        model.weight.grad_req = "add"
        losses = [model(array(np.ones((1, 2)))).sum() for _ in range(2)]
    for loss in losses:
        with amp.scale_loss(loss, trainer) as scaled:
            scaled.backward()
    assert amp.step(trainer).applied
    (master,) = amp.master_weights(model).values()
    assert master.tolist() == [[0.75, 0.75]]


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


def test_a_float16_policy_refuses_layers_in_bfloat16():
    """MXNet's optimizers make no state for them, and MXNet 2 cannot cast parameters to bfloat16."""
    products = dict.fromkeys(("matmul", "linear", "conv", "conv_transpose", "rnn"), "float32")
    policy = ua.Policy("float16", "float16", "float16", op_overrides=products, layer_overrides={"0": "bfloat16"})
    with pytest.raises(ua.PolicyNotSupportedError, match="do not train layers with parameters in bfloat16|no AVX512"):
        ua.Amp("mxnet", policy)
