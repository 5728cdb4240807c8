"""Whole training steps under mixed precision: what runs in which dtype, and that it learns."""

import itertools

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

MIXED = "mixed_bfloat16"


def layers(seed=0, sizes=(6, 16, 3)):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(a, b)).astype(np.float32) / np.sqrt(a).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(sizes)
    ]


def forward(weights, x):
    """The mlp in float64."""
    for index, (weight, bias) in enumerate(weights):
        x = x @ weight.astype(np.float64) + bias
        if index < len(weights) - 1:
            x = np.maximum(x, 0)
    return x


def data(seed=1, count=32):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 6)).astype(np.float32), rng.normal(size=(count, 3)).astype(np.float32)


def make(harness, policy, form="eager", lr=0.1, **options):
    amp = session(harness, form, policy=policy, **options)
    with amp.scope():
        model = harness.mlp(layers())
        optimizer = harness.sgd([model], lr)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, y):
        loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    return amp, model, optimizer, compiled(amp, form, step)


def test_float32_matches_numpy(harness, form):
    """Three steps of plain SGD against gradients worked out by hand in float64."""
    amp, model, _, step = make(harness, "float32", form)
    x, y = data()
    weights = [(w.astype(np.float64), b.astype(np.float64)) for w, b in layers()]
    for _ in range(3):
        (w0, b0), (w1, b1) = weights
        hidden = np.maximum(x @ w0 + b0, 0)
        out = hidden @ w1 + b1
        d_out = 2 * (out - y) / out.size
        d_hidden = (d_out @ w1.T) * (hidden > 0)
        weights = [
            (w0 - 0.1 * x.T @ d_hidden, b0 - 0.1 * d_hidden.sum(0)),
            (w1 - 0.1 * hidden.T @ d_out, b1 - 0.1 * d_out.sum(0)),
        ]
        step(amp.to_native(x), amp.to_native(y))
    ours = sorted(np.sort(np.ravel(value)).tolist() for value in harness.parameters(model).values())
    theirs = sorted(np.sort(np.ravel(value)).tolist() for pair in weights for value in pair)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_mixed_rounds_to_bfloat16_and_answers_float32(harness, form):
    """The output is float32, near float64's within bfloat16's rounding, and not float32's own."""
    amp, model, _, _ = make(harness, MIXED)
    x, _ = data()
    call = compiled(amp, form, lambda batch: model(batch))
    with amp.inference(model):
        out = call(amp.to_native(x))
    assert harness.dtype_of(out) == "float32"
    error = np.abs(amp.to_numpy(out) - forward(layers(), x.astype(np.float64))).max()
    assert 1e-4 < error < 0.1


def test_parameters_stay_float32_and_learn(harness, form):
    amp, model, _, step = make(harness, MIXED, form, loss_scale="dynamic")
    x, y = (amp.to_native(part) for part in data())
    losses = [float(np.ravel(amp.to_numpy(step(x, y)))[0]) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    assert amp.applied_steps == 30
    assert all(np.isfinite(value).all() for value in harness.parameters(model).values())


@pytest.mark.needs("layer_overrides")
def test_a_layer_kept_in_float32(harness, form):
    """With every layer overridden the outputs are float32's own."""
    x, _ = data()

    def output(policy):
        amp, model, _, _ = make(harness, policy)
        call = compiled(amp, form, lambda batch: model(batch))
        with amp.inference(model):
            return amp.to_numpy(call(amp.to_native(x)))

    policy = ua.Policy.parse(MIXED)
    plain, mixed = output("float32"), output(policy)
    kept = output(policy.replace(layer_overrides={"layer*": "float32"}))
    half = output(policy.replace(layer_overrides={"layer0": "float32"}))
    np.testing.assert_allclose(kept, plain, rtol=1e-6, atol=1e-6)
    assert np.abs(half - plain).max() > 1e-4
    assert np.abs(half - mixed).max() > 1e-5


def test_batch_norm_moves_in_training_and_rests_in_inference(harness, form):
    amp = session(harness, form, policy=MIXED)
    with amp.scope():
        model = harness.convnet(seed=0)
        optimizer = harness.sgd([model], 0.05)
    model, optimizer = amp.prepare(model, optimizer)
    rng = np.random.default_rng(0)
    array = harness.image_batch(rng.normal(2.0, 3.0, (16, 8, 8, 1)).astype(np.float32))
    images = amp.to_native(array)
    labels = amp.to_native(rng.integers(0, 10, 16))

    def evaluate(batch=images):
        with amp.inference(model):
            return amp.to_numpy(model(batch))

    def step(images, labels):
        loss = amp.backward(lambda: harness.cross_entropy(model(images), labels), optimizer)
        amp.step(optimizer)
        return loss

    first = evaluate()
    np.testing.assert_array_equal(evaluate(), first)
    # At rest an answer does not depend on what else is in the batch.
    np.testing.assert_allclose(evaluate(amp.to_native(array[:4])), first[:4], rtol=0.02, atol=0.02)
    step = compiled(amp, form, step)
    losses = [float(np.ravel(amp.to_numpy(step(images, labels)))[0]) for _ in range(12)]
    assert losses[-1] < losses[0]
    assert not np.allclose(evaluate(), first)
    np.testing.assert_array_equal(evaluate(), evaluate())


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize(("policy", "rounding"), [("float32", 1e-6), (MIXED, 2e-3)])
def test_accumulated_micro_batches_are_one_batch(harness, form, policy, rounding):
    x, y = data(count=32)
    amp, whole, _, step = make(harness, policy, form)
    step(amp.to_native(x), amp.to_native(y))
    parts_amp, parts, _, part_step = make(harness, policy, form, accumulate_steps=4)
    for index in range(4):
        rows = slice(8 * index, 8 * index + 8)
        part_step(parts_amp.to_native(x[rows]), parts_amp.to_native(y[rows]))
    start = harness.parameters(make(harness, "float32")[1])
    for name, value in harness.parameters(whole).items():
        assert np.abs(value - start[name]).max() > 10 * rounding
        np.testing.assert_allclose(harness.parameters(parts)[name], value, rtol=1e-4, atol=rounding)


@pytest.mark.needs("context_form")
def test_context_form_and_closure_form_mean_the_same(harness, form):
    x, y = data()
    results = []
    for closure in (True, False):
        amp = session(harness, form, policy=MIXED, loss_scale=8.0)
        with amp.scope():
            model = harness.mlp(layers())
            optimizer = harness.sgd([model], 0.1)
        model, optimizer = amp.prepare(model, optimizer)

        def step(x, y, amp=amp, model=model, optimizer=optimizer, closure=closure):
            if closure:
                loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
            else:
                with amp.autocast():
                    loss = harness.mean_square(model(x), y)
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            amp.clip_grad_norm(optimizer, 1.0)
            amp.step(optimizer)
            return loss

        step = compiled(amp, form, step)
        for _ in range(3):
            step(amp.to_native(x), amp.to_native(y))
        results.append(harness.parameters(model))
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value)


@pytest.mark.parametrize("policy", ["float32", MIXED])
def test_explain_names_native_calls(harness, policy):
    amp = session(harness, policy=policy)
    plan = amp.explain()
    assert amp.policy.name == policy
    assert plan.row("policy").value == str(amp.policy)
    assert len(list(plan)) > 3
    assert {row.effect for row in plan} <= {"native", "emulated", "no effect", "unavailable"}
    assert policy in str(plan)


LISTED = {
    "accumulate_steps": ("accumulation", {"accumulate_steps": 2}, "2"),
    "emulate": ("emulation", {"policy": "mixed_bfloat16;emulate=true"}, "true"),
    "update": ("weight_updates", {"policy": "bfloat16;update=kahan"}, "kahan"),
    "state_dtype": ("state_dtype", {"policy": "mixed_bfloat16;state_dtype=bfloat16"}, "bfloat16"),
    "master_weights": ("master_weights", {"policy": "bfloat16", "master_weights": True}, "float32"),
}
"""Setting → the feature that it needs, what a session is made with, and the value of its row."""


@pytest.mark.parametrize("setting", LISTED)
def test_explain_lists_what_was_set(harness, setting):
    """With what the backend calls for it, and no row for a setting that was left out."""
    feature, options, value = LISTED[setting]
    if not harness.capabilities().feature(feature):
        pytest.skip(f"the backend declares no {feature}")
    try:
        amp = session(harness, **options)
    except ua.PolicyNotSupportedError as refusal:
        pytest.skip(f"declared: {refusal}")
    row = amp.explain().row(setting)
    assert row.value == value
    assert row.native
    assert row.effect in ("native", "emulated")
    amp.close()
    with pytest.raises(KeyError):
        session(harness).explain().row(setting)


def test_round_trip_of_arrays(harness):
    amp = session(harness)
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4), np.float32([[1.5]])):
        back = amp.to_numpy(amp.to_native(array))
        np.testing.assert_array_equal(back, array)
