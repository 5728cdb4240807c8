"""Recipes of float8 layers: the operands of each product have the bits of the reference.

A product with an identity matrix shows its other operand as it was rounded: one term of each sum is not zero.
"""

import contextlib

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.suite.float8_layers import BFLOAT16, E4M3, E5M2, EYE, SIZE, ZEROS, Layers, uneven
from unifiedamp.formats.rounding import round_to
from unifiedamp.formats.scaled_rounding import round_operand
from unifiedamp.policy.float8 import RECIPES


def every_bfloat16():
    """Numbers of bfloat16 of magnitudes from 2**-100 to 2**100, all of them, unlike ones side by side in rows of SIZE.

    Below 2**-126, the scaled numbers of some blocks would be subnormal, which a framework may take for zeros.
    """
    bits = np.arange(2**16, dtype=np.uint32) << 16
    values = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    values = values[(np.abs(values) >= 2.0**-100) & (np.abs(values) <= 2.0**100)]
    near = values[np.argsort(np.abs(values), kind="stable")]
    rng = np.random.default_rng(0)
    values = np.concatenate([near, rng.permutation(near)])
    return values[: len(values) // SIZE * SIZE].reshape(-1, SIZE)


def rounded(recipe, values, of="input"):
    """What is left of an operand whose product sums over its last dimension, as a bfloat16 product gives it."""
    how = ua.Policy(compute_dtype="float8", recipe=recipe).float8
    format = E5M2 if of == "gradient" and how.gradient_format == "e5m2" else E4M3
    found, inverse = round_operand(values, format, how.block_format or how.scaling, square=of == "weight")
    return round_to(found * inverse, BFLOAT16)


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in ("delayed", "rowwise_gw_hp")])
def test_operands_have_the_bits_of_the_reference(harness, recipe):
    """The six operands of a layer's three products, each rounded along the dimension that its product sums over."""
    values, same, low = uneven(0), np.testing.assert_array_equal, {"wgrad": "bfloat16"}
    run = Layers(harness, recipe, EYE)
    for inputs in (values, every_bfloat16()):
        same(run.call(inputs), rounded(recipe, inputs), "fprop, inputs")
    same(run.weight_gradients(EYE, values)[0], rounded(recipe, values.T, "gradient").T, "wgrad, gradients")
    same(run.weight_gradients(values, EYE)[0], rounded(recipe, values.T), "wgrad, inputs")
    wide = values * np.random.default_rng(1).uniform(0.5, 1, values.shape).astype(np.float32)
    wide[0, 0] = 3.5
    run = Layers(harness, recipe, wide)
    same(run.call(EYE), rounded(recipe, wide.T, "weight").T, "fprop, weight")
    run = Layers(harness, recipe, EYE, EYE, policy=low)
    same(run.weight_gradients(EYE, values)[0], rounded(recipe, values, "gradient"), "dgrad, gradients")
    run = Layers(harness, recipe, EYE, values, policy=low)
    same(run.weight_gradients(EYE, EYE)[0], rounded(recipe, values, "weight").T, "dgrad, weight")


def wide(recipe, values, of="input"):
    """An operand of a float64 product: as :func:`rounded`, of scales that bfloat16 does not hold too."""
    how = ua.Policy(compute_dtype="float8", recipe=recipe).float8
    found, inverse = round_operand(
        values.astype(np.float32), E4M3, how.block_format or how.scaling, square=of == "weight"
    )
    return found.astype(np.float64) * inverse


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 128), (120, 128), (128, 120)])
def test_a_layer_with_a_size_that_is_no_multiple_of_16_is_in_bfloat16(harness, inputs, outputs):
    """As on hardware, whose kernels do not take it; it is said. float8 leaves an error above 1 %, bfloat16 does not."""
    weight, x = uneven(0)[:inputs, :outputs], uneven(1)[:, :inputs]
    try:
        amp = ua.Amp(harness.backend, ua.Policy(compute_dtype="float8", emulate=True))
    except ua.PolicyNotSupportedError as refusal:
        pytest.skip(f"declared: {refusal}")
    fits = (inputs, outputs) == (128, 128)
    with amp.scope():
        model = harness.mlp([(weight, ZEROS[:outputs])])
    told = (
        contextlib.nullcontext() if fits else pytest.warns(ua.errors.PolicyWarning, match="120: not a multiple of 16")
    )
    with told:
        model = amp.prepare(model)
    with amp.inference(model), amp.autocast():
        found = np.asarray(amp.to_numpy(model(amp.to_native(x))), np.float64)
    exact = x.astype(np.float64) @ weight
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert 0.01 < error < 0.1 if fits else error < 0.005


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("bad", [-np.inf, np.nan])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "block128", "mxfp8", "mxfp4", "nvfp4", "int8"])
def test_inf_and_nan_reach_the_output(harness, recipe, bad):
    """So that the step is skipped; no format takes them for its largest number."""
    x = uneven(0)
    x[1, 3] = bad
    assert not np.isfinite(Layers(harness, recipe, np.ones_like(EYE)).call(x)[1]).any()


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("recipe", ["rowwise", "block128", "mxfp8", "nvfp4", "int8"])
def test_two_layers_differentiate_as_an_oracle_in_float64(harness, recipe):
    """All six products, with the rounding to bfloat16 after each."""
    x, w0, w1, gradient = (uneven(seed) for seed in range(4))
    low = lambda values: round_to(values.astype(np.float32), BFLOAT16).astype(np.float64)  # noqa: E731
    product = wide(recipe, x) @ wide(recipe, w0.T, "weight").T
    # The hardware's product of 128-blocks adds no bias, so its result is rounded before.
    hidden = np.maximum(low((low(product) if recipe == "block128" else product) + 1), 0)
    dw1 = wide(recipe, hidden.T) @ wide(recipe, gradient.T).T
    d_hidden = low(wide(recipe, gradient) @ wide(recipe, w1, "weight").T) * (hidden > 0)
    dw0 = wide(recipe, x.T) @ wide(recipe, d_hidden.T).T
    found = Layers(harness, recipe, w0, w1).weight_gradients(x, gradient, rounded=False)
    exact = np.maximum(x.astype(np.float64) @ w0 + 1, 0).T @ gradient
    for mine, expected in zip(found, (dw0, dw1), strict=True):
        assert np.linalg.norm(mine - expected) < 0.005 * np.linalg.norm(expected)
        np.testing.assert_array_equal(round_to(mine, BFLOAT16), mine)
    assert np.linalg.norm(found[1] - exact) > 0.005 * np.linalg.norm(exact)


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("product", ["fprop", "dgrad", "wgrad"])
def test_a_product_in_bfloat16_is_not_rounded(harness, product):
    values = uneven(0)
    found = {
        "fprop": lambda run: run.call(values),
        "dgrad": lambda run: run.weight_gradients(EYE, values)[0],
        "wgrad": lambda run: run.weight_gradients(values, EYE)[0].T,
    }
    weights = [EYE] * (2 if product == "dgrad" else 1)
    settings = {product: "bfloat16", "wgrad": "bfloat16"} if product == "dgrad" else {product: "bfloat16"}
    np.testing.assert_array_equal(found[product](Layers(harness, "mxfp4", *weights, policy=settings)), values)


@pytest.mark.needs("float8", "emulation")
def test_the_plan_says_that_attention_is_not_in_float8(harness):
    amp = session(harness, policy="mixed_float8;emulate=true")
    (row,) = [each for each in amp.explain().rows if each.setting == "float8 attention"]
    assert (row.value, row.effect) == ("bfloat16", "unavailable")
    assert "no framework has a float8 product of attention" in row.note


def test_a_block_format_is_refused_without_emulation(harness):
    for policy in ("mixed_nvfp4", "mixed_float8;recipe=MXFP8BlockScaling"):
        with pytest.raises(ua.PolicyNotSupportedError, match="compute capability 10.0.*;emulate=true' runs its numer"):
            ua.Amp(harness.backend, policy)


@pytest.mark.needs("float8")
@pytest.mark.parametrize("change", ["set", "replaced"])
def test_a_weight_that_changes_is_cast_anew(harness, form, change):
    """Inside a window, in place or by another object: the next loss is that of a layer that began with it."""
    layers = [(np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32), np.zeros(16, np.float32))]
    x = np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32)

    def made(weights):
        amp = session(harness, form, "mixed_float8", harness.float8_emulation, accumulate_steps=2)
        with amp.scope():
            model = harness.mlp(weights)
            optimizer = harness.sgd([model], 0.0)
        model, optimizer = amp.prepare(model, optimizer)

        def train(x, y):
            loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
            amp.step(optimizer)
            return loss

        step = compiled(amp, form, train)
        arrays = amp.to_native(x), amp.to_native(np.zeros((16, 16), np.float32))
        return model, lambda: float(np.ravel(amp.to_numpy(step(*arrays)))[0])

    model, loss = made(layers)
    before = [loss() for _ in range(3)][-1]
    if change == "set":
        harness.set_parameters(model, {name: 4 * each for name, each in harness.parameters(model).items()})
    else:
        harness.replace_weight(model, "layer0", 4.0)
    _, expected = made([(4 * weight, bias) for weight, bias in layers])
    found, want = loss(), expected()
    assert found == pytest.approx(want, rel=1e-3)
    assert found > 8 * before
