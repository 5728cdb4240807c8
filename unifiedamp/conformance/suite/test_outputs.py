"""What a prepared model returns: in the output dtype wherever floating numbers are, and nothing else changed."""

from dataclasses import replace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.emulated import has_dtype

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
        assert has_dtype(harness, amp, output, dtype), harness.dtype_of(output)
        assert has_dtype(harness, amp, double, dtype), harness.dtype_of(double)
        assert harness.dtype_of(places).startswith("int")
        np.testing.assert_allclose(np.float64(amp.to_numpy(output)), expected, rtol=0.05, atol=0.05)
        np.testing.assert_allclose(np.float64(amp.to_numpy(double)), 2 * expected, rtol=0.05, atol=0.1)
        assert amp.to_numpy(places).tolist() == np.argmax(amp.to_numpy(output), -1).tolist()


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")  # what returns mappings may not be compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mappings_and_named_tuples_keep_their_kind(harness, form, dtype):
    """Users read them by name, and a subclass of dict stays one."""
    _, plain, _ = answers(harness, form, "float32", harness.mapped)
    amp, found, expected = answers(harness, form, replace(MIXED, output_dtype=dtype), harness.mapped)
    assert {type(answer) for answer in found} == {type(answer) for answer in plain}
    for answer in found:
        assert set(answer) == {"output", "pair"}
        output, double, place = answer["output"], answer["pair"].double, answer["pair"].place
        assert has_dtype(harness, amp, output, dtype), harness.dtype_of(output)
        assert has_dtype(harness, amp, double, dtype), harness.dtype_of(double)
        assert harness.dtype_of(place).startswith("int")
        np.testing.assert_allclose(np.float64(amp.to_numpy(output)), expected, rtol=0.05, atol=0.05)
        np.testing.assert_allclose(np.float64(amp.to_numpy(double)), 2 * expected, rtol=0.05, atol=0.1)
        assert amp.to_numpy(place).tolist() == np.argmax(amp.to_numpy(output), -1).tolist()


def test_a_layer_keeps_the_dtype_that_its_author_chose(harness, form):
    """It computes in float32 in a session of a mixed policy, in regions that are disabled, and trains so."""
    amp = session(harness, form, MIXED)
    weight, bias = layer()
    with amp.scope():
        model = harness.kept_dense(weight, bias)
        optimizer = harness.sgd([model], 1.0)
    model, optimizer = amp.prepare(model, optimizer)
    batch = np.random.default_rng(1).integers(-4, 5, size=(4, SIZE)) / 4.0  # which bfloat16 holds
    call, x = compiled(amp, form, lambda x: model(x)), amp.to_native(batch)
    expected = batch @ weight + bias
    for region in (amp.inference(model), amp.autocast(), amp.autocast(enabled=False)):
        with region:
            np.testing.assert_allclose(np.float64(amp.to_numpy(call(x))), expected, rtol=1e-5, atol=1e-5)

    def step(x, y):
        loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    before = {name: value.size for name, value in harness.parameters(model).items()}
    loss = compiled(amp, form, step)(x, amp.to_native(np.zeros((4, SIZE))))
    assert float(np.ravel(amp.to_numpy(loss))[0]) == pytest.approx(float(np.mean(expected**2)), rel=1e-5)
    after = {value.size: value for value in harness.parameters(model).values()}
    assert set(after) == set(before.values()) == {SIZE, SIZE * SIZE}
    np.testing.assert_allclose(after[SIZE].ravel(), bias - expected.sum(0) * 2 / expected.size, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*float64:unifiedamp.PolicyWarning")  # the policy has no effect on all of it
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_layers_in_float64_stay(harness, form, policy):
    """No policy names float64: the layer computes in it inside regions too. The answer may be rounded to float32."""
    amp, found, expected = answers(harness, form, policy, harness.wide_dense, "float64")
    for output in found:
        assert harness.dtype_of(output) in ("float32", "float64")
        np.testing.assert_allclose(np.float64(amp.to_numpy(output)), expected, rtol=2.0**-23)
