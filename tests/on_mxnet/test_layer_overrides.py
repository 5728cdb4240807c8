"""Layer overrides on MXNet: where each layer computes, and how gradients pass."""

import numpy as np
import pytest
from bfloat16_oracle import dense
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import dtype_name, gluon

MIXED = ua.Policy(compute_dtype="bfloat16")


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
