"""Dense layers in float8: their numbers against an oracle in float64, which layers, and that nothing hides an inf."""

import itertools
import math
import warnings

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance import float8 as oracle
from unifiedamp.conformance.driver import compiled, session

POLICY = ua.Policy.parse("mixed_float8")
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)


@pytest.fixture(params=["emulated", "native"])
def settings(request, harness):
    """Backend options under which the policy runs: emulated anywhere, and by the hardware where it has float8."""
    support = harness.capabilities().policies["mixed_float8"]
    if request.param == "native":
        if not support:
            pytest.skip(f"declared: {support.reason}")
        return {}
    return harness.float8_emulation


def layers(*sizes, seed=0):
    """Weights and biases; biases are bfloat16 numbers, as is everything that a layer adds in bfloat16."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=pair).astype(np.float32), oracle.BFLOAT16.round(rng.normal(size=pair[1])).astype(np.float32))
        for pair in itertools.pairwise(sizes)
    ]


def batch(rows, columns, seed=1):
    """Inputs in bfloat16. Their largest is 448 / 128, so that ties are ties in float32 and float64 alike."""
    x = oracle.BFLOAT16.round(np.clip(np.random.default_rng(seed).normal(size=(rows, columns)), -3.5, 3.5))
    x[0, 0] = 3.5
    return x.astype(np.float32)


class Layers:
    """A prepared MLP under a session; ``step`` trains it to answer 0, with learning rate 1."""

    def __init__(self, harness, settings, weights, policy=POLICY, form="eager", lr=1.0, **options):
        self.amp = session(harness, form, policy, settings, **options)
        with self.amp.scope():
            model = harness.mlp(weights)
            optimizer = harness.sgd([model], lr)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self.harness = harness
        self._step = compiled(self.amp, form, self._train)
        self._call = compiled(self.amp, form, lambda x: self.model(x))

    def _train(self, x, y):
        loss = self.amp.backward(lambda: self.harness.mean_square(self.model(x), y), self.optimizer)
        self.amp.step(self.optimizer)
        return loss

    def step(self, x):
        zeros = np.zeros((len(x), self.outputs), np.float32)
        return self.amp.to_numpy(self._step(self.amp.to_native(x), self.amp.to_native(zeros)))

    def call(self, x, **region):
        with self.amp.inference(self.model), self.amp.autocast(**region):
            return np.asarray(self.amp.to_numpy(self._call(self.amp.to_native(x))), np.float64)

    @property
    def outputs(self):
        return min(len(value) for value in self.parameters() if value.ndim == 1)

    def parameters(self):
        return list(self.harness.parameters(self.model).values())

    def gradients(self, x):
        """The gradients of one step with learning rate 1, by the parameters' shapes."""
        before = self.parameters()
        self.step(x)
        return {old.shape: old - new for old, new in zip(before, self.parameters(), strict=True)}


def of_shape(found, shape):
    return found[shape] if shape in found else found[shape[::-1]].T


@pytest.mark.needs("float8")
@pytest.mark.parametrize("rows", [32, 16, 5])
def test_a_layer_answers_as_the_oracle(harness, form, settings, rows):
    ((weight, bias),) = weights = layers(48, 32)
    x = batch(rows, 48)
    out = Layers(harness, settings, weights, form=form).call(x)
    np.testing.assert_allclose(out, oracle.forward(x, weight, bias), rtol=2**-7, atol=1e-2)
    assert np.abs(out - (x.astype(np.float64) @ weight + bias)).max() > 0.1


@pytest.mark.needs("float8")
@pytest.mark.parametrize("loss_scale", [None, 2.0**12])
def test_gradients_are_those_of_the_oracle(harness, form, settings, loss_scale):
    """The gradient of the mean square of 2**10 outputs is the output (a bfloat16 number) times 2**-9: exact."""
    (w0, b0), (w1, b1) = weights = layers(48, 64, 32)
    x = batch(32, 48)
    run = Layers(harness, settings, weights, form=form, loss_scale=loss_scale)
    hidden = np.maximum(oracle.forward(x, w0, b0), 0)
    gradient = oracle.forward(hidden, w1, b1) * 2.0**-9
    d_hidden, dw1, db1 = oracle.backward(hidden, w1, gradient)
    _, dw0, db0 = oracle.backward(x, w0, np.where(hidden > 0, d_hidden, 0))
    found = run.gradients(x)
    # A compiler may leave roundings to bfloat16 out between layers, and the hardware sums in fewer bits; then some
    # float8 numbers are neighbours of the oracle's.
    limit = 0.005 if form == "eager" and settings else 0.06
    for expected in (dw1, db1, dw0, db0):
        assert distance(of_shape(found, expected.shape), expected) < limit
    hidden = np.maximum(x.astype(np.float64) @ w0 + b0, 0)
    exact = hidden.T @ ((hidden @ w1 + b1) * 2.0**-9)
    assert distance(of_shape(found, dw1.shape), dw1) < 0.5 * distance(exact, dw1)


def distance(found, expected):
    """The root of the mean square of what they differ by, over that of ``expected``."""
    return np.sqrt(np.square(found - expected).mean() / np.square(expected).mean())


@pytest.mark.needs("float8")
@pytest.mark.parametrize("power", [-100, -20, 20, 60])
def test_scaling_follows_the_values(harness, settings, power):
    """Inputs times a power of two give outputs times that power, however far outside float8's range they are."""
    ((weight, bias),) = layers(48, 32)
    run = Layers(harness, settings, [(weight, 0 * bias)])
    x = batch(16, 48)
    np.testing.assert_array_equal(run.call(np.ldexp(x, power)), np.ldexp(run.call(x), power))


@pytest.mark.needs("float8")
def test_zeros(harness, form, settings):
    """A tensor of zeros gives no scale; its products are zeros, and so are the gradients of a zero loss."""
    ((weight, bias),) = layers(48, 32)
    run = Layers(harness, settings, [(weight, bias)], form=form)
    np.testing.assert_array_equal(run.call(np.zeros((16, 48), np.float32)), np.broadcast_to(bias, (16, 32)))
    run = Layers(harness, settings, [(weight, 0 * bias)], form=form)
    assert all((gradient == 0).all() for gradient in run.gradients(np.zeros((16, 48), np.float32)).values())


@pytest.mark.needs("float8")
def test_a_batch_of_no_rows(harness, settings):
    ((weight, bias),) = layers(48, 32)
    run = Layers(harness, settings, [(weight, bias)])
    assert run.call(np.zeros((0, 48), np.float32)).shape == (0, 32)


@pytest.mark.needs("float8")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_canonical_trace_in_float8(harness, form, settings, bad):
    """An inf or nan in an activation reaches the finite check: the scale changes as in the canonical trace."""
    run = Layers(harness, settings, layers(16, 32, 16), form=form, lr=1e-3, loss_scale=SCALE)
    good = batch(16, 16)
    worse = good.copy()
    worse[3, 5] = bad
    scales, moved = [], []
    for index in range(7):
        scales.append(run.amp.loss_scale)
        before = run.parameters()
        run.step(worse if index == 3 else good)
        moved.append(any((old != new).any() for old, new in zip(before, run.parameters(), strict=True)))
    assert scales == [4.0, 4.0, 4.0, 8.0, 4.0, 4.0, 4.0]
    assert moved == [index != 3 for index in range(7)]
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (6, 1, 8.0)


@pytest.mark.needs("float8")
def test_a_gradient_that_overflows_is_seen(harness, form, settings):
    """A finite loss whose gradient times the scale is beyond float32: the step is skipped, nothing is saturated."""
    run = Layers(harness, settings, layers(16, 16), form=form, loss_scale=2.0**126)
    before = run.parameters()
    loss = run.step(batch(16, 16) * 2.0**20)
    assert np.isfinite(loss).all()
    assert run.amp.skipped_steps == 1
    for old, new in zip(before, run.parameters(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.needs("float8", "layer_overrides")
def test_which_layers_run_in_float8(harness, settings):
    """By size, and by name: a layer that is taken out answers as under mixed_bfloat16, and explain() says all this."""
    amp = session(harness, policy=POLICY, settings=settings)
    assert "multiples of 16" in amp.explain().row("float8").note
    weights = layers(48, 32, 10)
    x = batch(16, 48)
    plain, mixed = (Layers(harness, None, weights, policy).call(x) for policy in ("float32", "mixed_bfloat16"))
    run = Layers(harness, settings, weights)
    plan = run.amp.explain()
    assert (plan.row("float8.layer0").value, plan.row("float8.layer1").value) == ("float8", "not float8")
    assert "=10: not a multiple of 16" in plan.row("float8.layer1").note
    told = Layers(harness, None, weights, POLICY.replace(emulate=True)).amp.explain().row("float8.layer0")
    assert (told.value, told.effect) == ("float8", "emulated")
    with pytest.warns(ua.PolicyWarning, match="'mixed_float8' runs no"):
        narrow = Layers(harness, settings, layers(24, 32)).amp.explain().row("float8.layer0")
    assert narrow.value == "not float8"
    assert "=24: not a multiple of 16" in narrow.note
    assert np.abs(run.call(x) - plain).max() > 3 * np.abs(mixed - plain).max()
    weights = layers(48, 32, 16)
    for dtype in ("bfloat16", "float32"):
        kept = Layers(harness, settings, weights, POLICY.replace(layer_overrides={"layer0": dtype}))
        row = kept.amp.explain().row("float8.layer0")
        assert (row.value, row.note) == ("not float8", f"layer_overrides: {dtype}")
        assert kept.amp.explain().row("float8.layer1").value == "float8"


@pytest.mark.needs("float8")
def test_layers_that_are_not_dense_are_not_listed(harness, settings):
    """Convolutions and norms run as under mixed_bfloat16, of which float8 has nothing to say."""
    amp = session(harness, policy=POLICY, settings=settings)
    with amp.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.PolicyWarning)
        model = amp.prepare(harness.convnet(0))
    with amp.inference(model):
        model(amp.to_native(harness.image_batch(np.ones((1, 8, 8, 1), np.float32))))
    listed = [row.setting for row in amp.explain() if row.setting.startswith("float8.")]
    assert [name for name in listed if "conv" in name or "norm" in name] == []
    assert any("head" in name for name in listed)


@pytest.mark.needs("float8")
def test_layers_of_two_models_are_listed_apart(harness, settings):
    amp = session(harness, policy=POLICY, settings=settings)
    with amp.scope():
        models = [harness.mlp(layers(48, 32)), harness.mlp(layers(32, 16))]
    models = amp.prepare(*models)
    for model, size in zip(models, (48, 32), strict=True):
        with amp.inference(model):
            model(amp.to_native(batch(16, size)))
    listed = {row.setting: row.value for row in amp.explain() if row.setting.startswith("float8.")}
    assert list(listed.values()) == ["float8"] * 2
    assert len(listed) == 2


@pytest.mark.needs("float8", "layer_overrides")
def test_a_layer_taken_out_answers_as_under_bfloat16(harness, settings):
    weights = layers(48, 32)
    x = batch(16, 48)
    policy = POLICY.replace(layer_overrides={"layer0": "bfloat16"})
    kept = Layers(harness, settings, [*weights, *layers(32, 16)], policy)
    both = Layers(harness, settings, [*weights, *layers(32, 16)])
    hidden = np.maximum(Layers(harness, None, weights, "mixed_bfloat16").call(x), 0)
    expected = oracle.forward(hidden, *layers(32, 16)[0])
    np.testing.assert_allclose(kept.call(x), expected, rtol=2**-7, atol=1e-2)
    assert np.abs(both.call(x) - expected).max() > 0.1


@pytest.mark.needs("float8")
def test_regions_turn_it_off(harness, settings):
    weights = layers(48, 32)
    x = batch(16, 48)
    run = Layers(harness, settings, weights)
    first = run.call(x)
    plain = Layers(harness, None, weights, "float32").call(x)
    np.testing.assert_allclose(run.call(x, enabled=False), plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run.call(x, policy="float32"), plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(run.call(x), first)
    run.amp.close()
    assert run.amp.explain().row("float8").value


@pytest.mark.needs("float8")
def test_it_learns_as_well_as_bfloat16(harness, form, settings):
    """A teacher's answers, learnt from the same start: the loss comes down as far."""
    x, (teacher,) = batch(128, 32, seed=5), layers(32, 16, seed=6)
    y = np.tanh(x @ teacher[0] / 4).astype(np.float32)

    def losses(policy, settings):
        weights = [(w / np.sqrt(len(w)).astype(np.float32), 0 * b) for w, b in layers(32, 64, 16)]
        run = Layers(harness, settings, weights, policy, form, lr=0.5)
        x_there, y_there = run.amp.to_native(x), run.amp.to_native(y)
        return [float(np.ravel(run.amp.to_numpy(run._step(x_there, y_there)))[0]) for _ in range(150)]

    low, mixed = losses(POLICY, settings), losses("mixed_bfloat16", None)
    assert mixed[-1] < 0.3 * mixed[0]
    assert low[-1] < 1.1 * mixed[-1]


@pytest.mark.needs("float8", "accumulation")
def test_micro_batches_add_up(harness, form, settings):
    """Two halves of equal rows are scaled alike, so their mean gradient is one half's."""
    weights = layers(16, 16)
    x = batch(16, 16)
    whole = Layers(harness, settings, weights, form=form).gradients(x)
    run = Layers(harness, settings, weights, form=form, accumulate_steps=2)
    before = run.parameters()
    run.step(x)
    run.step(x)
    for old, new in zip(before, run.parameters(), strict=True):
        np.testing.assert_allclose(old - new, whole[old.shape], rtol=1e-4, atol=1e-5)


@pytest.mark.needs("float8")
@pytest.mark.parametrize("recipe", ["delayed", "rowwise", "rowwise_gw_hp", "block128"])
def test_a_recipe_scales_as_no_other_does_or_is_refused(harness, settings, recipe):
    """Rows of unlike sizes, then larger ones: no recipe has the scales of "tensorwise" for both steps."""
    weights = layers(128, 128)
    x = batch(128, 128) * np.exp2(-(np.arange(128, dtype=np.float32) % 16))[:, None]

    def trained(name):
        run = Layers(harness, settings, weights, POLICY.replace(recipe=name), lr=2.0**-10)
        run.step(x)
        run.step(64 * x)
        return run.parameters()

    default = trained("tensorwise")
    refused = ""
    try:
        found = trained(recipe)
    except ua.PolicyNotSupportedError as refusal:
        refused = str(refusal)
    if refused:
        assert f"recipe={recipe}" in refused
        assert "'mixed_float8" in refused.split("nearest")[1]
    else:
        assert any(not np.array_equal(one, other) for one, other in zip(found, default, strict=True))


@pytest.mark.parametrize(
    "policy", ["mixed_float8", "mixed_float8;recipe=delayed;margin=1", "mixed_float8;recipe=rowwise_gw_hp"]
)
def test_float8_is_refused_by_name_where_it_does_not_run(harness, policy):
    """With the reason, the nearest policy that runs, and emulation of the same recipe where there is one."""
    if harness.capabilities().policies["mixed_float8"]:
        pytest.skip("it runs here")
    with pytest.raises(ua.PolicyNotSupportedError) as refusal:
        ua.Amp(harness.backend, policy)
    text = str(refusal.value)
    assert f"'{policy}'" in text
    assert "'mixed_bfloat16'" in text or "'mixed_float16'" in text or "'float32'" in text
    assert (f"'{policy};emulate=true'" in text) == bool(harness.float8_emulation)


@pytest.mark.needs("float8")
def test_its_state_names_the_policy(harness, settings):
    amp = session(harness, policy=POLICY, settings=settings, loss_scale=SCALE)
    state = amp.state_dict()
    assert state["policy"] == "mixed_float8"
    other = session(harness, policy=POLICY, settings=settings, loss_scale=SCALE)
    other.load_state_dict({**state, "state": {**state["state"], "scale": 32.0}})
    assert other.loss_scale == 32.0
