"""``amp.convert_model`` on MXNet: copies for inference in low precision."""

import numpy as np
import pytest
from trainers import batch

import unifiedamp as ua
from unifiedamp_mxnet import convert_model
from unifiedamp_mxnet.mxnet_api import dtype_name, gluon

MIXED = ua.Policy(compute_dtype="bfloat16")


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
