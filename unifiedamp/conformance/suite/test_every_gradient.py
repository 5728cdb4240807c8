"""What is done to gradients is done to every one of them: checked, unscaled, clipped, emptied, named."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

INF = math.inf
COUNT = 3
RATES = (0.1, 0.2, 0.4)


def dynamic(**changes):
    return ua.DynamicLossScale(**{"initial_scale": 4.0, "growth_interval": 3, **changes})


def run_of(harness, form, grouped, **options):
    """Three parameters of value 1, in one group or in a group each."""
    if not grouped:
        return probe_run(harness, form, values=(1.0,) * COUNT, loss_scale=dynamic(), **options), (0.1,) * COUNT
    make = lambda model: harness.grouped_sgd(model, RATES)  # noqa: E731
    return probe_run(harness, form, values=(1.0,) * COUNT, loss_scale=dynamic(), make=make, **options), RATES


def after(rates, gradients):
    return pytest.approx([1.0 - rate * gradient for rate, gradient in zip(rates, gradients, strict=True)], abs=1e-6)


def true_gradients(amp, optimizer):
    return [float(np.ravel(amp.to_numpy(value))[0]) for value in amp.gradients(optimizer).values()]


@pytest.mark.parametrize("grouped", [False, True], ids=["together", "groups"])
@pytest.mark.parametrize("bad", range(COUNT))
def test_any_gradient_alone_skips_the_step(harness, form, grouped, bad):
    run, rates = run_of(harness, form, grouped)
    gradients = [1.0] * COUNT
    gradients[bad] = INF if bad % 2 else math.nan
    run.feed(*gradients)
    assert run.weights() == [1.0] * COUNT
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (0, 1, 2.0)
    run.feed(1.0, 2.0, 3.0)
    assert run.weights() == after(rates, (1.0, 2.0, 3.0))


@pytest.mark.parametrize("grouped", [False, True], ids=["together", "groups"])
def test_every_gradient_is_unscaled_and_emptied(harness, form, grouped):
    run, rates = run_of(harness, form, grouped)
    run.feed(1.0, 2.0, 3.0)
    assert run.weights() == after(rates, (1.0, 2.0, 3.0))
    assert run.amp.gradients(run.optimizer) == {}
    run.feed(1.0, 2.0, 3.0)
    assert run.weights() == after(rates, (2.0, 4.0, 6.0))


@pytest.mark.parametrize("grouped", [False, True], ids=["together", "groups"])
def test_the_norm_is_that_of_all_gradients(harness, form, grouped):
    norms = []

    def clip(amp, optimizer):
        norms.append(amp.clip_grad_norm(optimizer, 3.5))

    run, rates = run_of(harness, form, grouped, clip=clip)
    run.feed(2.0, 3.0, 6.0)  # a norm of 7
    assert run.weights() == after(rates, (1.0, 1.5, 3.0))
    if form.startswith("eager"):
        assert float(np.ravel(run.amp.to_numpy(norms[0]))[0]) == pytest.approx(7.0, rel=1e-5)


@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1.0, 2.0**80])
def test_the_norm_is_float32(harness, policy, size):
    """Of gradients in 16 bits too, and of those whose squares float32 does not hold."""
    if policy == "float16" and size > 1.0:
        pytest.skip("float16 holds no such gradients")
    norms = []

    def clip(amp, optimizer):
        norms.append(amp.clip_grad_norm(optimizer, 1.0))

    policy = harness.pure_policies.get(policy, policy)
    run = probe_run(harness, values=(1.0, 1.0), clip=clip, policy=policy, loss_scale="none")
    run.feed(3.0 * size, 4.0 * size)
    assert harness.dtype_of(norms[0]) == "float32"
    assert float(np.ravel(run.amp.to_numpy(norms[0]))[0]) == pytest.approx(5.0 * size, rel=1e-2)


@pytest.mark.parametrize("grouped", [False, True], ids=["together", "groups"])
def test_every_gradient_is_clamped(harness, form, grouped):
    """At the limit itself nothing changes; just beyond it, on either side, it is the limit."""
    run, rates = run_of(harness, form, grouped, clip=lambda amp, optimizer: amp.clip_grad_value(optimizer, 2.0))
    run.feed(-2.5, 2.0, 2.25)
    assert run.weights() == after(rates, (-2.0, 2.0, 2.0))
    run.feed(-2.0, 1.75, -1.0)
    assert run.weights() == after(rates, (-4.0, 3.75, 1.0))


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("grouped", [False, True], ids=["together", "groups"])
def test_every_gradient_is_added_up_over_a_window(harness, form, grouped):
    run, rates = run_of(harness, form, grouped, accumulate_steps=2)
    for gradients in (
        (1.0, 2.0, 3.0),
        (3.0, 0.0, -1.0),
        (1.0, 1.0, 1.0),
        (1.0, 1.0, INF),
        (2.0, 2.0, 2.0),
        (0.0, 0.0, 4.0),
    ):
        run.feed(*gradients)
    assert run.weights() == after(rates, (3.0, 2.0, 4.0))
    assert (run.amp.applied_steps, run.amp.skipped_steps) == (2, 1)


@pytest.mark.parametrize("bad", [0, 250, 299])
def test_one_gradient_among_hundreds(harness, bad):
    """Whatever handles gradients in bunches looks into the last one, too."""
    run = probe_run(harness, values=(1.0,) * 300, loss_scale=dynamic())
    gradients = [1.0] * 300
    gradients[bad] = INF
    run.feed(*gradients)
    assert set(run.weights()) == {1.0}
    assert run.amp.skipped_steps == 1
    run.feed(*[float(index) for index in range(300)])
    expected = [1.0 - 0.1 * index for index in range(300)]
    assert sorted(run.weights()) == pytest.approx(sorted(expected), abs=1e-4)


def test_gradients_have_the_names_of_parameters(harness):
    """In the order of the parameters, whatever has a gradient and nothing else."""
    amp = session(harness, loss_scale=dynamic())
    model = harness.probe((1.0,) * COUNT)
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    assert amp.gradients(optimizer) == {}
    x = amp.to_native(np.float32([1.0, 2.0, 3.0]))
    amp.backward(lambda: model(x), optimizer)
    assert list(amp.gradients(optimizer)) == list(harness.parameters(model))
    assert true_gradients(amp, optimizer) == [4.0, 8.0, 12.0]
    amp.discard_step(optimizer)
    assert amp.gradients(optimizer) == {}


@pytest.mark.parametrize("discarded", [False, True])
def test_a_parameter_that_no_loss_reaches_rests(harness, discarded):
    """Its gradient of the window before is not applied again."""
    amp = session(harness, loss_scale=dynamic())
    models = [harness.probe([1.0]) for _ in range(2)]
    *models, optimizer = amp.prepare(*models, harness.sgd(models, 0.1))
    x = amp.to_native(np.float32([1.0]))
    amp.backward(lambda: models[0](x) + models[1](x), optimizer)
    (amp.discard_step if discarded else amp.step)(optimizer)
    for model in models:
        amp.backward(lambda model=model: model(x), optimizer)
        assert [value for value in true_gradients(amp, optimizer) if value] == [4.0]
        assert amp.step(optimizer).applied
    weights = [float(harness.parameters(model).popitem()[1][0]) for model in models]
    assert weights == pytest.approx([0.9] * 2 if discarded else [0.8] * 2, abs=1e-6)


def test_an_edit_between_unscale_and_step_is_what_is_applied(harness):
    amp = session(harness, loss_scale=dynamic())
    model = harness.probe((1.0,) * COUNT)
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    names = list(harness.parameters(model))
    x = amp.to_native(np.float32([1.0, 2.0, 3.0]))
    amp.backward(lambda: model(x), optimizer)
    amp.unscale(optimizer)
    harness.set_gradients(amp, optimizer, {names[1]: np.float32([5.0])})
    amp.unscale(optimizer)
    assert true_gradients(amp, optimizer) == [1.0, 5.0, 3.0]
    amp.step(optimizer)
    weights = [float(value[0]) for value in harness.parameters(model).values()]
    assert weights == pytest.approx([0.9, 0.5, 0.7], abs=1e-6)


@pytest.mark.parametrize("later", [False, True], ids=["together", "later"])
def test_parameters_of_two_models_have_a_gradient_each(harness, later):
    """Under one optimizer, where the models' own names for them are the same."""
    amp = session(harness, loss_scale=dynamic())
    models = [harness.probe([1.0, 1.0]) for _ in range(4)]
    native = harness.sgd(models, 0.1)
    if later:
        models = [amp.prepare(model) for model in models]
        try:
            *_, optimizer = amp.prepare(models[0], native)
        except ua.PrepareError:  # the framework's optimizers want all their models at once
            *models, optimizer = amp.prepare(*models, native)
    else:
        *models, optimizer = amp.prepare(*models, native)
    inputs = [amp.to_native(np.float32([place + 1.0, place + 5.0])) for place in range(4)]

    def loss():
        first, *others = [model(x) for model, x in zip(models, inputs, strict=True)]
        return sum(others, first)

    amp.backward(loss, optimizer)
    amp.unscale(optimizer)
    assert sorted(true_gradients(amp, optimizer)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("bad", [0, 1])
def test_the_gradient_that_overflowed_is_named(harness, form, first, bad):
    """Whichever of two losses reached its parameter, and in whatever order they came."""
    amp, told = session(harness, form, loss_scale=dynamic()), []

    class Observer:
        def on_step_skipped(self, report):
            told.append(report.tensors)

    models = [harness.probe([1.0]), harness.probe([1.0])]
    *models, optimizer = amp.prepare(*models, harness.sgd(models, 0.1))
    amp.observe(Observer())

    def losses(*inputs):
        for index in (first, 1 - first):
            amp.backward(lambda index=index: models[index](inputs[index]), optimizer)

    inputs = [amp.to_native(np.float32([INF if index == bad else 1.0])) for index in (0, 1)]
    losses(*inputs)
    held = {name: float(np.ravel(amp.to_numpy(value))[0]) for name, value in amp.gradients(optimizer).items()}
    amp.discard_step(optimizer)

    def step(*inputs):
        losses(*inputs)
        amp.step(optimizer)

    compiled(amp, form, step)(*inputs)
    assert told == [tuple(name for name, value in held.items() if not math.isfinite(value))]
    assert len(held) == 2
