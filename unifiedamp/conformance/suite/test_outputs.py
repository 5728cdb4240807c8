"""What a prepared model returns: in the output dtype wherever floating numbers are, and nothing else changed."""

from dataclasses import replace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

MIXED = ua.Policy.parse("mixed_bfloat16")
SIZE = 8


def layer(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(SIZE, SIZE)) / 2, rng.normal(size=SIZE)


def answers(harness, form, policy, make, dtype=None):
    """What the model made by ``make`` returns in inference and in training, and the batch."""
    amp = session(harness, form, policy)
    with amp.scope():
        model = make(*layer())
    model = amp.prepare(model)
    batch = np.random.default_rng(1).normal(size=(4, SIZE))
    call, x = compiled(amp, form, lambda x: model(x)), amp.to_native(batch, dtype or "float32")
    with amp.inference(model):
        first = call(x)
    with amp.autocast():
        second = call(x)
    weight, bias = layer()
    return amp, (first, second), batch @ weight + bias


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_in_structures_have_the_output_dtype(harness, form, dtype):
    """Whole numbers stay whole, and a structure keeps its shape."""
    amp, found, expected = answers(harness, form, replace(MIXED, output_dtype=dtype), harness.structured)
    for output, (double, places) in found:
        assert [harness.dtype_of(output), harness.dtype_of(double)] == [dtype, dtype]
        assert harness.dtype_of(places).startswith("int")
        np.testing.assert_allclose(np.float64(amp.to_numpy(output)), expected, rtol=0.05, atol=0.05)
        np.testing.assert_allclose(np.float64(amp.to_numpy(double)), 2 * expected, rtol=0.05, atol=0.1)
        assert amp.to_numpy(places).tolist() == np.argmax(amp.to_numpy(output), -1).tolist()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_layers_in_float64_stay(harness, form, policy):
    """No policy names float64: the layer computes in it inside regions too. The answer may be rounded to float32."""
    amp, found, expected = answers(harness, form, policy, harness.wide_dense, "float64")
    for output in found:
        assert harness.dtype_of(output) in ("float32", "float64")
        np.testing.assert_allclose(np.float64(amp.to_numpy(output)), expected, rtol=2.0**-23)
