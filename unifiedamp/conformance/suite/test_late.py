"""What comes after ``prepare``: more models, more parameters, weights that change hands."""

import contextlib
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=100)
MIXED = ua.Policy.parse("mixed_bfloat16")
LOW = MIXED.replace(loss_scale=None)
TINY = 2.0**-13
"""A step from 1 that both 16-bit formats round away, and float32 does not."""


def values(amp, model):
    return [float(np.ravel(array)[0]) for array in amp.master_weights(model).values()]


def step(amp, models, optimizers, gradient=1.0):
    x = amp.to_native(np.float32([gradient]))

    def loss():
        answers = [model(x) for model in models]
        return sum(answers[1:], answers[0])

    amp.backward(loss, list(optimizers))
    return [amp.step(optimizer) for optimizer in optimizers]


@pytest.mark.needs("master_weights", "several_optimizers")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_of_a_model_prepared_later(harness, policy):
    """Tiny updates of both models survive, and so does a skip."""
    amp = session(harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=SCALE)
    models, optimizers = [], []
    for _ in range(2):
        with amp.scope():
            model = harness.probe([1.0])
            optimizer = harness.sgd([model], TINY)
        model, optimizer = amp.prepare(model, optimizer)
        models.append(model)
        optimizers.append(optimizer)
        step(amp, models, optimizers)
    step(amp, models, optimizers, math.inf)
    step(amp, models, optimizers)
    assert [values(amp, model) for model in models] == [[1.0 - 3 * TINY], [1.0 - 2 * TINY]]
    assert (amp.applied_steps, amp.skipped_steps) == (5, 2)


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_of_parameters_added_later(harness, policy):
    amp = session(harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=SCALE)
    with amp.scope():
        model, late = harness.probe([1.0]), harness.probe([1.0])
        optimizer = harness.sgd([model], TINY)
    model, optimizer = amp.prepare(model, optimizer)
    step(amp, [model], [optimizer])
    late = amp.prepare(late)
    harness.extend(optimizer, late)
    for _ in range(2):
        step(amp, [model, late], [optimizer])
    assert (values(amp, model), values(amp, late)) == ([1.0 - 3 * TINY], [1.0 - 2 * TINY])


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_clipping_sees_float32_gradients_of_parameters_added_later(harness, policy):
    """In the first step that they take part in: (3, 3) has the norm 4.24 and is clipped to 2."""
    amp = session(harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=SCALE)
    with amp.scope():
        model, late = harness.probe([1.0]), harness.probe([1.0])
        optimizer = harness.sgd([model], TINY)
    model, optimizer = amp.prepare(model, optimizer)
    step(amp, [model], [optimizer])
    late = amp.prepare(late)
    harness.extend(optimizer, late)
    x = amp.to_native(np.float32([3.0]))
    amp.backward(lambda: model(x) + late(x), optimizer)
    amp.unscale(optimizer)
    assert [harness.dtype_of(gradient) for gradient in amp.gradients(optimizer).values()] == ["float32"] * 2
    amp.clip_grad_norm(optimizer, 2.0)
    assert amp.step(optimizer).applied
    np.testing.assert_allclose(values(amp, late), [1.0 - TINY * math.sqrt(2.0)], rtol=2.0**-22)


@pytest.mark.parametrize("scale", [4.0, "none"])
def test_parameters_added_later(harness, scale):
    """They are scaled, checked, clipped and emptied with the others."""
    amp = session(harness, loss_scale=scale)
    model, late = harness.probe([1.0]), harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    step(amp, [model], [optimizer])
    late = amp.prepare(late)
    harness.extend(optimizer, late)
    for gradient in (1.0, math.inf, 1.0) if scale != "none" else (1.0, 1.0):
        step(amp, [model, late], [optimizer], gradient)
    assert amp.gradients(optimizer) == {}
    found = [float(harness.parameters(each).popitem()[1][0]) for each in (model, late)]
    assert found == pytest.approx([0.7, 0.8], abs=1e-6)


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("scale", [4.0, "none"])
def test_parameters_added_between_windows(harness, scale):
    """They train by the mean of all micro-batches, from the first window on that they take part in."""
    amp = session(harness, loss_scale=scale, accumulate_steps=2)
    model, late = harness.probe([8.0]), harness.probe([8.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.5))
    for gradient in (1.0, 2.0):
        step(amp, [model], [optimizer], gradient)
    late = amp.prepare(late)
    harness.extend(optimizer, late)
    for gradient in (1.0, 3.0, 4.0, 2.0):
        step(amp, [model, late], [optimizer], gradient)
    found = [float(harness.parameters(each).popitem()[1][0]) for each in (model, late)]
    assert found == [8.0 - 0.5 * (1.5 + 2.0 + 3.0), 8.0 - 0.5 * (2.0 + 3.0)]


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_that_are_loaded_are_trained_on(harness, when):
    """Before the first step and after one; what was loaded is what the next step begins from."""
    amp = session(harness, loss_scale=SCALE)
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.5))
    if when == "after":
        step(amp, [model], [optimizer])
    amp.load_master_weights(model, {name: array * 0 + 8.0 for name, array in amp.master_weights(model).items()})
    step(amp, [model], [optimizer])
    assert values(amp, model) == [7.5]


@pytest.mark.needs("accumulation")
def test_weights_that_are_set_natively_are_trained_on(harness, form):
    """The next step begins with them, also one that was traced before; the window that is open goes on."""
    run = probe_run(harness, form, lr=0.5, loss_scale=SCALE, accumulate_steps=2)
    for _ in range(5):
        run.feed(1.0)
    harness.set_parameters(run.model, {name: value * 0 + 8.0 for name, value in harness.parameters(run.model).items()})
    for _ in range(3):
        run.feed(1.0)
    assert run.weights() == [7.0]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_that_are_loaded_are_trained_on(harness, policy):
    amp = session(harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=SCALE)
    with amp.scope():
        model = harness.probe([7.0])
        optimizer = harness.sgd([model], TINY)
    model, optimizer = amp.prepare(model, optimizer)
    step(amp, [model], [optimizer])
    fine = 1.0 + 2.0**-14
    amp.load_master_weights(model, {name: array * 0 + fine for name, array in amp.master_weights(model).items()})
    assert values(amp, model) == [fine]
    assert harness.parameters(model).popitem()[1].tolist() == [1.0]
    step(amp, [model], [optimizer])
    assert values(amp, model) == [fine - TINY]


@pytest.mark.needs("master_weights", "accumulation")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_of_a_window_cut_short(harness, policy):
    """What was discarded of masters' gradients is gone, also what was widened already."""
    amp = session(
        harness, policy=harness.pure_policies[policy], master_weights=True, loss_scale=SCALE, accumulate_steps=2,
    )  # fmt: skip
    with amp.scope():
        model = harness.probe([1.0])
        optimizer = harness.sgd([model], TINY)
    model, optimizer = amp.prepare(model, optimizer)
    x = amp.to_native(np.float32([1.0]))
    for discards in (True, False):
        for index in range(2):
            amp.backward(lambda: model(x), optimizer)
            if discards and index:
                amp.clip_grad_norm(optimizer, 100.0)
                amp.discard_step(optimizer)
            else:
                amp.step(optimizer)
    assert values(amp, model) == [1.0 - TINY]
    assert amp.gradients(optimizer) == {}


@pytest.mark.parametrize("policy", [None, LOW], ids=["session", "region"])
def test_answers_of_a_model_prepared_later(harness, form, policy):
    """They have the policy's output dtype and come from products in its compute dtype, in regions used before, too."""
    amp = session(harness, form, policy=MIXED if policy is None else "float32")
    models, x = [], np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    for seed in range(1, 4):
        layer = np.random.default_rng(seed).normal(size=(6, 6)).astype(np.float32)
        with amp.scope():
            model = harness.mlp([(layer, np.zeros(6, np.float32))])
        model = amp.prepare(model)
        models.append((compiled(amp, form, lambda x, model=model: model(x)), x.astype(np.float64) @ layer))
        for call, exact in models:
            try:
                with amp.inference(), amp.autocast(policy=policy):
                    answer = call(amp.to_native(x))
            except ua.UnsupportedError as refusal:  # where layers take their dtypes when they are made
                pytest.skip(f"refused: {refusal}")
            assert harness.dtype_of(answer) == "float32"
            assert 1e-4 < np.abs(amp.to_numpy(answer) - exact).max() < 0.5


def test_what_is_prepared_twice(harness, form):
    """Inside a step, too: it is refused or prepared once, and closing leaves nothing."""
    amp = session(harness, form, loss_scale=SCALE)
    model, other = harness.probe([1.0]), harness.probe([1.0])
    optimizer = harness.sgd([model], 0.1)
    attached = harness.attached(model), harness.attached(optimizer)
    given = model, optimizer
    model, optimizer = amp.prepare(*given)
    x = amp.to_native(np.float32([1.0]))

    def train():
        amp.backward(lambda: model(x), optimizer)
        with contextlib.suppress(ua.PrepareError):
            again = amp.prepare(model, optimizer, other)
            assert (again[0] is model, again[1] is optimizer) == (True, True)
        amp.step(optimizer)

    def plain(x):
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    train()
    compiled(amp, form, plain)(x)
    train()
    assert harness.parameters(model).popitem()[1] == pytest.approx([0.7], abs=1e-6)
    assert (amp.applied_steps, amp.skipped_steps) == (3, 0)
    if form == "eager":
        amp.close()
        assert tuple(map(harness.attached, given)) == attached
