"""Recipes of float8 layers: the operands of each product have the bits of the reference, and what is kept of a step.

A product with an identity matrix shows its other operand as it was rounded: one term of each sum is not zero.
"""

import json

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to
from unifiedamp.formats.scaled_rounding import round_by, round_operand
from unifiedamp.policy.float8 import RECIPES

SIZE = 128
EYE, ZEROS = np.eye(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
BFLOAT16, E4M3, E5M2 = (FLOAT_FORMATS[name] for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"))


def uneven(seed):
    """Numbers in bfloat16 whose magnitudes differ by row, by column and from block to block; the largest is 7/2."""
    rng = np.random.default_rng(seed)
    powers = np.exp2(-(np.arange(SIZE) % 5) - rng.integers(0, 4, SIZE))
    values = rng.uniform(-1, 1, (SIZE, SIZE)) * powers[:, None] * np.exp2(-(np.arange(SIZE) // 16 % 3))
    values = np.clip(round_to(values.astype(np.float32), BFLOAT16), -3.5, 3.5)
    values[0, 0] = 3.5
    return values


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


class Layers:
    """Dense layers under an emulated recipe, the biases of hidden ones 1; the gradient of the output is chosen.

    They are trained with learning rate 0, so that gradients change nothing.
    """

    def __init__(self, harness, recipe, *weights, form="eager", policy=None, **options):
        policy = ua.Policy(compute_dtype="float8", recipe=recipe, emulate=True, **(policy or {}))
        options["backend_options"] = {harness.backend: dict(harness.forms[form])} if harness.forms[form] else None
        try:
            self.amp = ua.Amp(harness.backend, policy, **options)
        except ua.PolicyNotSupportedError as refusal:
            pytest.skip(f"declared: {refusal}")
        self.harness, biases = harness, [ZEROS + 1] * (len(weights) - 1) + [ZEROS]
        with self.amp.scope():
            model = harness.mlp(list(zip(weights, biases, strict=True)))
            optimizer = harness.sgd([model], 0.0)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self._step = compiled(self.amp, form, self._train)

    def backward(self, x, y):
        self.amp.backward(lambda: self.harness.mean_square(self.model(x), y), self.optimizer)

    def _train(self, x, y):
        self.backward(x, y)
        self.amp.step(self.optimizer)

    def call(self, x):
        with self.amp.inference(self.model), self.amp.autocast():
            return np.asarray(self.amp.to_numpy(self.model(self.amp.to_native(x))), np.float32)

    def batch(self, x, gradient):
        with np.errstate(invalid="ignore"):
            target = self.call(x) - gradient * np.float32(gradient.size / 2)
        return self.amp.to_native(x), self.amp.to_native(target)

    def step(self, x, gradient):
        self._step(*self.batch(x, gradient))

    def weight_gradients(self, x, gradient):
        """The gradients of the weights, rounded to bfloat16, each of shape (inputs, outputs)."""
        self.backward(*self.batch(x, gradient))
        found = {name: self.amp.to_numpy(each) for name, each in self.amp.gradients(self.optimizer).items()}
        self.amp.discard_step(self.optimizer)
        found = [round_to(each, BFLOAT16) for each in found.values() if each.ndim == 2]
        probe = self.harness.mlp([(np.zeros((2, 3), np.float32), ZEROS[:3])])
        transposes = (3, 2) in [value.shape for value in self.harness.parameters(probe).values()]
        return [each.T if transposes else each for each in found]


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
    found = Layers(harness, recipe, w0, w1).weight_gradients(x, gradient)
    exact = np.maximum(x.astype(np.float64) @ w0 + 1, 0).T @ gradient
    for mine, expected in zip(found, (dw0, dw1), strict=True):
        assert np.linalg.norm(mine - expected) < 0.005 * np.linalg.norm(expected)
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


DELAYED = {"amax_history": 3, "margin": 1}


@pytest.mark.needs("float8", "emulation")
def test_delayed_scales_follow_the_history(harness, form):
    """What enters it, the scales that follow, larger values that saturate, and a state that a session goes on from."""
    values = uneven(0)
    scale = ua.DynamicLossScale(initial_scale=2.0, growth_interval=100)
    run = Layers(harness, "delayed", EYE, form=form, policy=DELAYED, loss_scale=scale)
    for factor in (1, 4, 0.5, 2):
        run.step(values * factor, values / factor)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[7.0, 1.75, 14.0], [1.0] * 3, [3.5, 14.0, 1.75]])
    worse = values.copy()
    worse[3, 5] = np.inf
    run.step(worse, values)
    assert run.amp.skipped_steps == 1
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"], history)
    (eight, inverse), one = round_by(values * 16, E4M3, 448 / 14 / 2), np.float32(224)
    expected = round_to(eight * inverse * one * (1 / one), BFLOAT16)
    assert expected.max() == 28.0 == values.max() * 8
    np.testing.assert_array_equal(run.call(values * 16), expected)
    other = Layers(harness, "delayed", EYE, form=form, policy=DELAYED, loss_scale=scale)
    assert not np.array_equal(other.call(values * 16), expected)
    other.amp.load_state_dict(json.loads(json.dumps(run.amp.state_dict())))
    np.testing.assert_array_equal(other.call(values * 16), expected)
    other.step(values, values * 2)
    history = other.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5, 7.0, 1.75], [1.0] * 3, [7.0, 3.5, 14.0]])


@pytest.mark.needs("float8", "emulation")
def test_products_outside_layers_do_not_enter_a_history(harness):
    """The function's operands are larger than those of the layer, which has run before it."""
    values = uneven(0) / 64
    run = Layers(harness, "delayed", EYE / 64, policy=DELAYED)
    x, y = run.batch(values, values)

    def loss():
        output = run.model(x)
        for op in ("matmul", "linear"):
            harness.run_op(op)
        return harness.mean_square(output, y)

    run.amp.backward(loss, run.optimizer)
    run.amp.step(run.optimizer)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5 / 64], [1 / 64], [3.5 / 64]])


@pytest.mark.needs("float8", "emulation")
def test_a_layer_that_is_called_twice_keeps_the_largest_of_both(harness, form):
    """In one loss: weights that are shared, or a discriminator that sees two batches."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, form=form, policy=DELAYED)

    def train(x, y, other, wanted):
        found = harness.mean_square
        run.amp.backward(lambda: found(run.model(x), y) + found(run.model(other), wanted), run.optimizer)
        run.amp.step(run.optimizer)

    step, large, small = compiled(run.amp, form, train), (values * 4, values / 4), (values, values)
    for first, second in ((large, small), (small, large), (small, small)):
        step(*run.batch(*first), *run.batch(*second))
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[3.5, 14.0, 14.0], [1.0] * 3, [3.5] * 3])


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((EYE, EYE), "belong to other layers: it has 'layer1', which is no float8 layer here"),
        ((EYE[:64],), "'layer0' has 64 inputs and 128 outputs in the state, and 128 inputs and 128 outputs here"),
    ],
    ids=["names", "sizes"],
)
def test_a_history_of_other_layers_is_refused(harness, others, said):
    """By their names, or by their sizes; the session goes on with its own."""
    values = uneven(0)
    run, other = Layers(harness, "delayed", EYE, policy=DELAYED), Layers(harness, "delayed", *others, policy=DELAYED)
    run.step(values, values)
    other.step(values[:, : len(others[0])] * 4, values)
    kept = run.amp.backend.amax_history.read()["layer0"]
    with pytest.raises(ua.CheckpointError, match=said):
        run.amp.load_state_dict(json.loads(json.dumps(other.amp.state_dict())))
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"], kept)


@pytest.mark.needs("float8", "emulation", "accumulation")
def test_a_window_enters_the_history_once(harness):
    """With the largest of its micro-batches; a discarded window and evaluation do not."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED, accumulate_steps=2)
    run.step(values * 64, values)
    run.amp.discard_step(run.optimizer)
    for factor in (1, 4):
        run.step(values * factor, values)
    run.call(values * 32)
    history = run.amp.backend.amax_history.read()["layer0"]
    np.testing.assert_array_equal(history, [[14.0], [1.0], [1.75]])  # the loss of a micro-batch counts half


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("scaled", [False, True])
def test_a_skipped_step_does_not_enter_the_history(harness, scaled):
    """Its magnitudes are finite and larger than those of the steps beside it."""
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED, loss_scale="dynamic" if scaled else None)
    for factor in (1, 64, 4):
        run.backward(*run.batch(values * factor, values))
        run.amp.skip_if(factor == 64)
        run.amp.step(run.optimizer)
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"][:2], [[14.0, 3.5], [1.0, 1.0]])


@pytest.mark.needs("float8", "emulation")
def test_an_interrupted_window_does_not_enter_the_history(harness):
    values = uneven(0)
    run = Layers(harness, "delayed", EYE, policy=DELAYED)
    run.step(values, values)
    x, y = run.batch(values * 4, values)

    def interrupted():
        harness.mean_square(run.model(x), y)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.amp.backward(interrupted, run.optimizer)
    run.step(values / 2, values)
    np.testing.assert_array_equal(run.amp.backend.amax_history.read()["layer0"][0], [1.75, 3.5])


@pytest.mark.needs("float8", "emulation")
def test_a_state_without_a_history_starts_scales_anew(harness):
    values = uneven(0)
    run, other = (Layers(harness, "delayed", EYE, policy=DELAYED) for _ in range(2))
    run.step(values * 4, values)
    run.amp.load_state_dict(json.loads(json.dumps(other.amp.state_dict())))
    for each in (run, other):
        np.testing.assert_array_equal(each.call(values * 16), other.call(values * 16))
        each.step(values, values)
    np.testing.assert_array_equal(run.call(values * 16), other.call(values * 16))
    histories = [each.amp.backend.amax_history.read()["layer0"] for each in (run, other)]
    np.testing.assert_array_equal(*histories)


@pytest.mark.needs("float8", "emulation")
def test_of_a_longer_history_the_newest_part_is_kept(harness):
    values = uneven(0)
    run, shorter = (Layers(harness, "delayed", EYE, policy=DELAYED | {"amax_history": length}) for length in (3, 2))
    for factor in (1, 4, 2):
        run.step(values * factor, values)
    with pytest.warns(ua.StateWarning, match="amax_history=3"):
        shorter.amp.load_state_dict(json.loads(json.dumps(run.amp.state_dict())))
    np.testing.assert_array_equal(shorter.amp.backend.amax_history.read()["layer0"][0], [7.0, 14.0])


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
