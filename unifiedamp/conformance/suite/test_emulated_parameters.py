"""Emulated policies with 16-bit parameters: rounded where the real ones round, with float32 sums between."""

import itertools

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to

pytestmark = pytest.mark.needs("emulation")

DTYPES = ["float16", "bfloat16"]
LAST_PLACE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def low(values, dtype):
    return round_to(np.float32(values), FLOAT_FORMATS[dtype]).astype(np.float64)


def weights(*sizes):
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=pair).astype(np.float32), rng.normal(size=pair[1]).astype(np.float32))
        for pair in itertools.pairwise(sizes)
    ]


def prepared(harness, form, dtype, layers, lr=2.0**-3, **options):
    policy = ua.Policy.parse(f"{dtype};emulate=true").replace(output_dtype="float32")  # for a loss in float32
    if dtype not in harness.emulated_parameters:
        with pytest.raises(ua.PolicyNotSupportedError, match=f"'mixed_{dtype};emulate=true'"):
            session(harness, form, policy, **options)
        pytest.skip(f"{dtype} parameters are not emulated: refused by name")
    amp = session(harness, form, policy, **options)
    with amp.scope():
        model = harness.mlp(layers)
        optimizer = harness.sgd([model], lr)
    return amp, *amp.prepare(model, optimizer)


def called(amp, form, model, x):
    call = compiled(amp, form, lambda x: model(x))
    with amp.inference(model), amp.autocast():
        return np.asarray(amp.to_numpy(call(amp.to_native(x))), np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_operands_and_results_are_rounded(harness, form, dtype):
    layers = weights(24, 16, 4)
    amp, model, _ = prepared(harness, form, dtype, layers)
    x = np.random.default_rng(1).normal(size=(8, 24)).astype(np.float32)
    found = called(amp, form, model, x)
    hidden = low(x, dtype)
    for place, (weight, bias) in enumerate(layers):
        hidden = low(np.maximum(hidden, 0 if place else -np.inf) @ low(weight, dtype) + low(bias, dtype), dtype)
    np.testing.assert_array_equal(found, low(found, dtype))
    np.testing.assert_allclose(found, hidden, rtol=2 * LAST_PLACE[dtype], atol=8 * LAST_PLACE[dtype])
    for value in harness.parameters(model).values():
        np.testing.assert_array_equal(value, low(value, dtype))
    exact = np.maximum(x.astype(np.float64) @ layers[0][0] + layers[0][1], 0) @ layers[1][0] + layers[1][1]
    assert np.abs(found - exact).max() > np.abs(found - hidden).max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_float32(harness, form, dtype):
    """8192 products of 1, and gradients of a bias in as many rows: 16-bit sums stop at 2048 or 256."""
    size = 8192
    amp, model, optimizer = prepared(harness, form, dtype, [(np.ones((size, 1)), np.zeros(1))], lr=2.0**-3)
    assert called(amp, form, model, np.ones((1, size), np.float32)) == size
    amp, model, optimizer = prepared(harness, form, dtype, [(np.zeros((1, 1)), np.zeros(1))], lr=2.0**-3)

    def train(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    ones = np.ones((size, 1), np.float32)
    compiled(amp, form, train)(amp.to_native(ones), amp.to_native(-ones))  # the gradient of each row is 2 / size
    assert [value.ravel()[0] for value in harness.parameters(model).values()] == [-0.25, -0.25]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_those_of_rounded_products(harness, form, dtype):
    """One step of SGD against float64 arithmetic between roundings; the update rounds once or twice more."""
    (weight, bias), rng = weights(24, 6)[0], np.random.default_rng(1)
    x, y = (rng.normal(size=size).astype(np.float32) for size in ((8, 24), (8, 6)))
    amp, model, optimizer = prepared(harness, form, dtype, [(weight, bias)])

    def train(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    before = harness.parameters(model)
    compiled(amp, form, train)(amp.to_native(x), amp.to_native(y))
    output = low(low(x, dtype) @ low(weight, dtype) + low(bias, dtype), dtype)
    gradient = low(2 * (output - y) / output.size, dtype)
    expected = [2.0**-3 * low(each, dtype) for each in (low(x, dtype).T @ gradient, gradient.sum(0))]
    for name, value in harness.parameters(model).items():
        assert np.abs(value - low(value, dtype)).max() == 0
        (update,) = [each for each in expected if each.size == value.size]
        update = update if update.shape == value.shape else update.T
        np.testing.assert_allclose(value, before[name] - update, rtol=LAST_PLACE[dtype], atol=LAST_PLACE[dtype] / 64)


@pytest.mark.needs("loss_scaling")
def test_a_gradient_beyond_float16_skips_the_step_of_its_parameters(harness, form):
    """The scaled gradient of the output, 2**20 at least, is no float16 number."""
    options = {"loss_scale": ua.DynamicLossScale(initial_scale=2.0**24), "master_weights": True}
    amp, model, optimizer = prepared(harness, form, "float16", [(np.ones((8, 8)), np.zeros(8))], **options)

    def train(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    batch = [amp.to_native(np.ones((2, 8), np.float32)), amp.to_native(np.zeros((2, 8), np.float32))]
    compiled(amp, form, train)(*batch)
    assert amp.skipped_steps == 1
    assert all(np.isin(value, (0, 1)).all() for value in harness.parameters(model).values())
