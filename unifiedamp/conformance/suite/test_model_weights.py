"""A model's true weights by name, and its copy for inference in low precision."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to

LOW = ua.Policy.parse("mixed_bfloat16")


def layers(seed=0):
    rng = np.random.default_rng(seed)
    sizes = [(8, 16), (16, 4)]
    return [(rng.normal(size=s).astype(np.float32) * 0.3, rng.normal(size=s[1]).astype(np.float32)) for s in sizes]


def mlp(harness, policy, **options):
    amp = session(harness, policy=policy, **options)
    with amp.scope():
        model = harness.mlp(layers())
    return amp, amp.prepare(model)


def batch(seed=1):
    return np.random.default_rng(seed).normal(size=(6, 8)).astype(np.float32)


def by_hand(x):
    (w0, b0), (w1, b1) = [(w.astype(np.float64), b.astype(np.float64)) for w, b in layers()]
    return np.maximum(x.astype(np.float64) @ w0 + b0, 0) @ w1 + b1


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_weights_are_the_parameters(harness, policy):
    amp, model = mlp(harness, policy)
    found, own = amp.master_weights(model), harness.parameters(model)
    assert all(array.dtype == np.float32 for array in found.values())
    assert [found[name].tolist() for name in own] == [array.tolist() for array in own.values()]


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_weights_without_masters_are_the_parameters(harness, form, policy):
    """In 16 bits, of a model made before the session too: as they are after each step, and as they are set."""
    policy = harness.pure_policies[policy]
    run = probe_run(harness, form, values=(1.0, -3.0), lr=2.0**-2, policy=policy, loss_scale="none")
    for count in range(1, 3):
        run.feed(1.0, 2.0)
        found = [float(np.ravel(array)[0]) for array in run.amp.master_weights(run.model).values()]
        assert found == run.weights() == [1.0 - 0.25 * count, -3.0 - 0.5 * count]
    run.amp.load_master_weights(
        run.model, {name: array * 0 + 8 for name, array in run.amp.master_weights(run.model).items()}
    )
    run.feed(1.0, 2.0)
    found = [float(np.ravel(array)[0]) for array in run.amp.master_weights(run.model).values()]
    assert found == run.weights() == [7.75, 7.5]


@pytest.mark.needs("float32_weights")
def test_statistics_are_among_the_weights(harness):
    amp = session(harness)
    with amp.scope():
        model = harness.convnet(0)
    model = amp.prepare(model)
    x = harness.image_batch(np.ones((2, 8, 8, 1), np.float32))
    with amp.inference(model):
        model(amp.to_native(x))
    statistics = set(amp.master_weights(model)) - set(harness.parameters(model))
    assert len(statistics) == 2


@pytest.mark.needs("float32_weights")
def test_weights_come_back(harness):
    amp, model = mlp(harness, "float32")
    before = amp.master_weights(model)
    amp.load_master_weights(model, {name: array + 1 for name, array in before.items()})
    for name, array in amp.master_weights(model).items():
        np.testing.assert_array_equal(array, before[name] + 1)
    amp.load_master_weights(model, before)
    for name, array in amp.master_weights(model).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found, name: found | {name + "x": found[name]}, "did you mean"),
        (lambda found, name: found | {name: found[name][:-1]}, "the model wants numbers of shape"),
        (lambda found, name: {key: value for key, value in found.items() if key != name}, "1 weights of the model"),
    ],
    ids=["unknown", "shape", "missing"],
)
def test_weights_that_do_not_fit_change_nothing(harness, change, message):
    amp, model = mlp(harness, "float32")
    before = amp.master_weights(model)
    last = list(before)[-1]
    with pytest.raises(ua.CheckpointError, match=message):
        amp.load_master_weights(model, change({name: array * 2 for name, array in before.items()}, last))
    for name, array in amp.master_weights(model).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.needs("convert_model")
@pytest.mark.parametrize("session_policy", ["float32", "mixed_bfloat16"])
def test_a_copy_answers_as_inference_does(harness, session_policy):
    amp, model = mlp(harness, session_policy)
    x = amp.to_native(batch())
    other, same = mlp(harness, LOW)
    with other.inference(same):
        expected = np.asarray(other.to_numpy(same(x)), np.float64)
    before = harness.parameters(model)
    made = amp.convert_model(model, x, policy=LOW)
    output = made(x)
    assert harness.dtype_of(output) == "float32"
    found = np.asarray(amp.to_numpy(output), np.float64)
    np.testing.assert_allclose(found, expected, rtol=2.0**-6, atol=2.0**-5)
    assert np.abs(found - by_hand(batch())).max() > 1e-5  # not float32
    assert harness.parameters(model).keys() == before.keys()
    for name, array in harness.parameters(model).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.needs("convert_model")
def test_a_copy_has_nothing_to_train(harness):
    """No parameter of it takes gradients, or memory for them; those of the model do as before."""
    amp, model = mlp(harness, "mixed_bfloat16")
    trained = harness.parameters(model).keys()
    made = amp.convert_model(model, amp.to_native(batch()), policy=LOW)
    assert harness.parameters(made) == {}
    assert harness.parameters(model).keys() == trained != set()


@pytest.mark.needs("convert_model", "layer_overrides")
def test_a_copy_with_a_layer_in_float32_is_its_own(harness):
    """Its output is not rounded to the session's output dtype, nor do its weights follow those of the model."""
    try:
        amp, model = mlp(harness, LOW.replace(output_dtype="bfloat16"))
    except ua.PolicyError as error:
        pytest.skip(str(error))
    x, overrides = amp.to_native(batch()), {"layer1": "float32"}
    try:
        made = amp.convert_model(model, x, policy=ua.Policy.parse("mixed_float16").replace(layer_overrides=overrides))
    except ua.PolicyNotSupportedError:
        made = amp.convert_model(model, x, policy=LOW.replace(layer_overrides=overrides))
    found = np.asarray(amp.to_numpy(made(x)), np.float32)
    assert (round_to(found, FLOAT_FORMATS["bfloat16"]) != found).any()
    amp.load_master_weights(model, {name: 0 * array for name, array in amp.master_weights(model).items()})
    np.testing.assert_array_equal(np.asarray(amp.to_numpy(made(x)), np.float32), found)


@pytest.mark.needs("convert_model")
def test_a_copy_adds_16_bits_to_float32(harness):
    """Where a layer's output meets its input, the copy does what a region does."""
    amp = session(harness, policy=LOW)
    with amp.scope():
        model = harness.residual(np.float32(np.eye(8) * 0.5))
    model = amp.prepare(model)
    x = amp.to_native(batch())
    with amp.inference(model):
        expected = np.asarray(amp.to_numpy(model(x)), np.float64)
    found = np.asarray(amp.to_numpy(amp.convert_model(model, x)(x)), np.float64)
    np.testing.assert_allclose(found, expected, rtol=2.0**-6)
    np.testing.assert_allclose(found, batch() * 1.5, rtol=2.0**-6)


@pytest.mark.needs("convert_model")
def test_a_copy_outlives_its_session_and_the_model_trains_on(harness):
    amp, model = mlp(harness, "mixed_bfloat16")
    x = amp.to_native(batch())
    made = amp.convert_model(model, x)
    first = np.asarray(amp.to_numpy(made(x)))
    amp.load_master_weights(model, {name: 0 * array for name, array in amp.master_weights(model).items()})
    amp.close()
    np.testing.assert_array_equal(np.asarray(amp.to_numpy(made(x))), first)


@pytest.mark.needs("convert_model", "layer_overrides")
@pytest.mark.parametrize("kept", ["none", "layer0", "layer*"])
def test_a_copy_rests_while_the_model_trains(harness, kept):
    """Also what it keeps in the model's own dtype; and the copy's answers train nothing."""
    amp = session(harness, policy="mixed_bfloat16")
    with amp.scope():
        model = harness.mlp(layers())
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)
    x, y = amp.to_native(batch()), amp.to_native(np.zeros((6, 4), np.float32))
    overrides = {} if kept == "none" else {kept: "float32"}
    made = amp.convert_model(model, x, policy=LOW.replace(layer_overrides=overrides))
    first, before = np.asarray(amp.to_numpy(made(x))).copy(), harness.parameters(model)
    for _ in range(2):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        assert amp.step(optimizer).applied
    assert all(np.abs(array - before[name]).max() > 0 for name, array in harness.parameters(model).items())
    np.testing.assert_array_equal(np.asarray(amp.to_numpy(made(x))), first)


@pytest.mark.needs("convert_model", "layer_overrides", "master_weights", "float32_weights")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_copy_is_of_the_master_weights(harness, dtype):
    """What it keeps in float32 holds what the model's own 16 bits round away."""
    amp = session(harness, policy=harness.pure_policies[dtype], master_weights=True, loss_scale=4.0)
    with amp.scope():
        model = harness.mlp(layers())
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)
    fine = 1.0 + 2.0**-12
    own = amp.master_weights(model)
    amp.load_master_weights(model, {name: np.full(each.shape, fine, np.float32) for name, each in own.items()})
    policy = LOW.replace(layer_overrides={"layer*": "float32"})
    try:
        made = amp.convert_model(model, amp.to_native(batch()), policy=policy)
    except ua.UnsupportedError as refusal:
        pytest.skip(f"refused: {refusal}")
    held = amp.master_weights(made)
    assert len(held) == 4
    assert all((array == fine).all() for array in held.values())


@pytest.mark.needs("convert_model")
def test_a_copy_evaluates(harness):
    amp = session(harness, policy="mixed_bfloat16")
    with amp.scope():
        model = harness.convnet(0)
    model = amp.prepare(model)
    x = amp.to_native(harness.image_batch(np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32) + 3))
    with amp.inference(model):
        expected = np.asarray(amp.to_numpy(model(x)))
    made = amp.convert_model(model, x)
    for _ in range(2):
        np.testing.assert_allclose(np.asarray(amp.to_numpy(made(x))), expected, rtol=2.0**-6, atol=2.0**-4)


@pytest.mark.needs("convert_model")
def test_what_cannot_be_converted_is_refused(harness):
    amp, model = mlp(harness, "float32")
    with pytest.raises(ua.PolicyError, match="nothing to convert"):
        amp.convert_model(model, amp.to_native(batch()))
    with pytest.raises(ua.PolicyNotSupportedError, match="not stored in float8"):
        amp.convert_model(model, amp.to_native(batch()), policy="mixed_float8")
    with pytest.raises(ua.WrongObjectError, match=r"amp\.convert_model: expected a model"):
        amp.convert_model([], amp.to_native(batch()), policy=LOW)


@pytest.mark.needs("convert_model")
def test_a_copy_leaves_a_compiled_model_alone(harness, form):
    """It answers as before, under its policy and without one."""
    amp, model = mlp(harness, LOW)
    call, x = compiled(amp, form, lambda x: model(x)), amp.to_native(batch())

    def answers():
        with amp.inference(model):
            inside = call(x)
            with amp.autocast(enabled=False):
                off = call(x)
        return inside, off, call(x)

    before, attached = answers(), harness.attached(model)
    amp.convert_model(model, x)
    assert harness.attached(model) == attached
    for found, expected in zip(answers(), before, strict=True):
        assert harness.dtype_of(found) == harness.dtype_of(expected)
        np.testing.assert_array_equal(np.asarray(amp.to_numpy(found)), np.asarray(amp.to_numpy(expected)))
