"""Overrides: inside overridden layers, in compiled calls, after exceptions, and by exact names."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session, settled_state
from unifiedamp.conformance.float8 import BFLOAT16

MIXED = ua.Policy.parse("mixed_bfloat16")
SIZE = 8


def weights(count, seed=0):
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(SIZE, SIZE)) / 2, rng.normal(size=SIZE) / 8) for _ in range(count)]
    return [(w.astype(np.float32), b.astype(np.float32)) for w, b in pairs]


def batch(seed=1):
    return np.random.default_rng(seed).normal(size=(4, SIZE)).astype(np.float32)


class Net:
    """Dense layers of one size, prepared under a policy."""

    def __init__(self, harness, policy, count=2, form="eager", **options):
        self.harness, self.amp = harness, session(harness, form, policy, **options)
        with self.amp.scope():
            model = harness.mlp(weights(count))
            optimizer = harness.sgd([model], 0.1)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self.call = compiled(self.amp, form, lambda x: self.model(x))

    def __call__(self, **region):
        with self.amp.inference(self.model), self.amp.autocast(**region):
            return self.answer()

    def answer(self):
        return np.asarray(self.amp.to_numpy(self.call(self.amp.to_native(batch()))), np.float64)

    def evaluate(self):
        with self.amp.inference(self.model):
            return self.answer()


def differ(one, other):
    return np.abs(one - other).max() > 1e-4


@pytest.mark.needs("layer_overrides")
@pytest.mark.parametrize("kept", [0, 1, 10])
def test_a_name_is_no_prefix(harness, kept):
    """``layer1`` names neither ``layer10`` nor ``layer11``: keeping it in float32 changes what it does and no more."""
    count = 12
    names = [f"layer{index}" for index in range(count)]
    by_one = Net(harness, MIXED.replace(layer_overrides={f"layer{kept}": "float32"}), count).evaluate()
    by_all = MIXED.replace(layer_overrides=dict.fromkeys(names, "float32"))
    plain = Net(harness, "float32", count).evaluate()
    np.testing.assert_allclose(Net(harness, by_all, count).evaluate(), plain, rtol=1e-5, atol=1e-5)
    assert differ(by_one, plain)
    assert differ(by_one, Net(harness, MIXED, count).evaluate())
    if kept == 1:
        wider = Net(harness, MIXED.replace(layer_overrides={"layer1*": "float32"}), count).evaluate()
        assert differ(by_one, wider)


@pytest.mark.needs("layer_overrides", "float32_weights")
def test_a_block_that_is_named_holds_its_layers(harness, form):
    """They have its dtype, too."""
    answers = []
    for policy in ("float32", MIXED.replace(layer_overrides={"block": "float32"}), MIXED):
        amp = session(harness, form, policy)
        with amp.scope():
            model = harness.nested_norm(SIZE)
        model, rng = amp.prepare(model), np.random.default_rng(0)
        values = {name: rng.normal(size=array.shape) for name, array in sorted(amp.master_weights(model).items())}
        amp.load_master_weights(model, values)
        call = compiled(amp, form, lambda x, model=model: model(x))
        with amp.inference(model):
            answers.append(amp.to_numpy(call(amp.to_native(batch()))))
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-5, atol=1e-5)
    assert differ(answers[2], answers[0])


def nested_answer(harness, form, **overrides):
    """Return what a block of a dense layer and a norm answers in mixed bfloat16 under these overrides."""
    amp = session(harness, form, MIXED.replace(layer_overrides={k.replace("_", "."): v for k, v in overrides.items()}))
    with amp.scope():
        model = harness.nested_norm(SIZE)
    model, rng = amp.prepare(model), np.random.default_rng(0)
    values = {name: rng.normal(size=array.shape) for name, array in sorted(amp.master_weights(model).items())}
    amp.load_master_weights(model, values)
    call = compiled(amp, form, lambda x: model(x))
    with amp.inference(model):
        return amp.to_numpy(call(amp.to_native(batch())))


@pytest.mark.needs("layer_overrides", "float32_weights")
def test_a_layer_named_inside_a_named_block(harness, form):
    """It has its own dtype, whichever the block has."""
    low, wide = (nested_answer(harness, form, block=dtype) for dtype in ("bfloat16", "float32"))
    found = nested_answer(harness, form, block="bfloat16", block_dense="float32")
    assert differ(found, low)
    assert np.abs(found - low).max() < 0.1
    found = nested_answer(harness, form, block="float32", block_dense="bfloat16")
    assert differ(found, wide)
    assert np.abs(found - wide).max() < 0.1
    found = nested_answer(harness, form, block="float32", block_dense="float32", block_norm="float32")
    np.testing.assert_allclose(found, wide, rtol=1e-5, atol=1e-5)


@pytest.mark.needs("layer_overrides")
@pytest.mark.parametrize("low", ["layer0", "layer1"])
def test_an_overridden_layer_in_a_low_dtype(harness, form, low):
    """The other way round: everything in float32 but one layer, be it the first or the last."""
    policy = ua.Policy.parse("float32").replace(layer_overrides={low: "bfloat16"})
    try:
        net = Net(harness, policy, form=form)
    except ua.PrepareError as refusal:
        pytest.skip(f"refused: {refusal}")
    found, plain = net.evaluate(), Net(harness, "float32", form=form).evaluate()
    assert differ(found, plain)
    assert np.abs(found - plain).max() < 0.1
    assert differ(found, Net(harness, MIXED, form=form).evaluate())


@pytest.mark.needs("layer_overrides")
@pytest.mark.parametrize("kept", ["layer0", "layer1"])
def test_a_layer_that_fails_leaves_nothing_behind(harness, form, kept):
    """The first layer raises in its forward pass, overridden or not; the next call is as the first one, in the region
    and outside.
    """
    net = Net(harness, MIXED.replace(layer_overrides={kept: "float32"}), form=form)
    first, outside, before = net.evaluate(), net.answer(), settled_state(harness)
    wrong = net.amp.to_native(np.ones((4, SIZE + 1), np.float32))
    with net.amp.inference(net.model):
        inside = harness.global_state()
        with pytest.raises(Exception) as caught:
            np.asarray(net.amp.to_numpy(net.call(wrong)))
        assert not isinstance(caught.value, ua.AmpError), "it is the framework's own error"
        assert harness.global_state() == inside
        assert harness.run_op(harness.low_precision_op) == "bfloat16"
        np.testing.assert_array_equal(net.answer(), first)
    assert harness.global_state() == before
    np.testing.assert_array_equal(net.answer(), outside)
    np.testing.assert_array_equal(net.evaluate(), first)
    assert harness.run_op(harness.low_precision_op) == "float32"


@pytest.mark.needs("layer_overrides")
def test_overridden_layers_train(harness):
    """Their gradients are those of float32 where all are overridden; in part, they lie between."""
    found = {}
    policies = {"plain": "float32", "mixed": MIXED, "all": MIXED.replace(layer_overrides={"layer*": "float32"})}
    for name, policy in policies.items():
        net = Net(harness, policy)
        amp, model, optimizer = net.amp, net.model, net.optimizer
        x, y = amp.to_native(batch()), amp.to_native(batch(2))
        for _ in range(2):
            amp.backward(lambda model=model, x=x, y=y: harness.mean_square(model(x), y), optimizer)
            amp.step(optimizer)
        found[name] = np.concatenate([np.ravel(value) for value in harness.parameters(model).values()])
    np.testing.assert_allclose(found["all"], found["plain"], rtol=1e-5, atol=1e-6)
    assert np.abs(found["mixed"] - found["plain"]).max() > 1e-5


@pytest.mark.needs("op_overrides", "layer_overrides")
def test_operations_inside_an_overridden_layer(harness, form):
    """An override by operation holds inside a layer that is overridden by name, whatever its dtype.

    What goes into a layer may be cast to the layer's dtype before.
    """
    (w0, b0), (w1, b1) = weights(2)
    hidden = np.maximum(batch().astype(np.float64) @ w0 + b0, 0)
    plain, narrowed = hidden @ w1 + b1, BFLOAT16.round(hidden) @ w1 + b1
    for dtype in ("float32", "bfloat16"):
        policy = MIXED.replace(op_overrides={"linear": "float32"}, layer_overrides={"layer1": dtype})
        found = Net(harness, policy, form=form).evaluate()
        errors = [np.abs(found - expected).max() for expected in (plain, narrowed)]
        assert errors[0] < 1e-5 or (dtype == "bfloat16" and errors[1] < 1e-5)


@pytest.mark.needs("op_overrides")
def test_operations_after_an_exception(harness):
    """The override holds in its session's regions alone, before and after one was left by an exception."""
    amp = session(harness, policy=MIXED.replace(op_overrides={"linear": "float32"}))
    net, plain = Net(harness, MIXED), session(harness, policy=MIXED)
    mixed, before = net.evaluate(), settled_state(harness)
    for _ in range(2):
        with pytest.raises(KeyError), amp.autocast(), plain.autocast():
            raise KeyError
        assert harness.global_state() == before
        np.testing.assert_array_equal(net.evaluate(), mixed)
        with plain.autocast():
            assert harness.run_op(harness.low_precision_op) == "bfloat16"
    amp.close()
    with plain.autocast():
        assert harness.run_op(harness.low_precision_op) == "bfloat16"


@pytest.mark.needs("op_overrides")
def test_operations_of_nested_regions(harness):
    """Each region runs under its session's overrides, also after a nested region of another session."""
    if not harness.overrides_reach_run_op:
        pytest.skip("declared: op overrides act on the layers of prepared models alone")
    kept = session(harness, policy=MIXED.replace(op_overrides={harness.low_precision_op: "float32"}))
    plain, seen = session(harness, policy=MIXED), []
    with plain.autocast():
        with kept.autocast():
            seen.append(harness.run_op(harness.low_precision_op))
            with plain.autocast():
                seen.append(harness.run_op(harness.low_precision_op))
            seen.append(harness.run_op(harness.low_precision_op))
        seen.append(harness.run_op(harness.low_precision_op))
    for amp in (kept, plain):
        amp.close()
    assert seen == ["float32", "bfloat16", "float32", "bfloat16"]


@pytest.mark.needs("op_overrides")
def test_two_sessions_with_other_overrides(harness, form):
    """Each follows its own, however their regions and calls interleave, and closing one leaves the other's."""
    kept = Net(harness, MIXED.replace(op_overrides={"linear": "float32"}), form=form)
    mixed, plain = Net(harness, MIXED, form=form), Net(harness, "float32")
    expected = mixed.evaluate()
    for _ in range(2):
        np.testing.assert_allclose(kept.evaluate(), plain.evaluate(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(mixed.evaluate(), expected)
    assert differ(expected, plain.evaluate())
    other = Net(harness, MIXED.replace(op_overrides={"linear": "float32"}), form=form)
    other.evaluate()
    other.amp.close()
    np.testing.assert_allclose(kept.evaluate(), plain.evaluate(), rtol=1e-5, atol=1e-5)


def test_a_region_of_another_policy(harness, form):
    """``policy=`` replaces the session's for the region: bfloat16 inside it is what a session of that policy gives."""
    net = Net(harness, MIXED, form=form)
    mixed = net.evaluate()
    off, other = net(enabled=False), net(policy="float32")
    plain = Net(harness, "float32", form=form).evaluate()
    np.testing.assert_allclose(off, plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other, plain, rtol=1e-5, atol=1e-5)
    assert differ(mixed, plain)
    np.testing.assert_array_equal(net.evaluate(), mixed)


@pytest.mark.needs("layer_overrides")
@pytest.mark.parametrize("later", [False, True], ids=["together", "later"])
def test_layers_of_two_models(harness, form, later):
    """Models that have layers of the same names, as copies have: an override holds in each of them."""
    amp = session(harness, form, MIXED.replace(layer_overrides={"layer*": "float32"}))
    with amp.scope():
        models = [harness.mlp(weights(2, seed)) for seed in range(2)]
    models = [amp.prepare(model) for model in models] if later else list(amp.prepare(*models))
    calls = [compiled(amp, form, lambda x, model=model: model(x)) for model in models]
    for seed, call in enumerate(calls):
        (w0, b0), (w1, b1) = weights(2, seed)
        with amp.inference():
            found = np.asarray(amp.to_numpy(call(amp.to_native(batch()))))
        expected = np.maximum(batch().astype(np.float64) @ w0 + b0, 0) @ w1 + b1
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
