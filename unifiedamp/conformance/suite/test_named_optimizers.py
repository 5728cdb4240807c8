"""Several optimizers in one iteration: gradients reach those that are named, and each keeps what is its own."""

import contextlib
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

pytestmark = pytest.mark.needs("several_optimizers")

INF = math.inf


class Trio:
    """Probe models of value 1, an optimizer each, one session."""

    def __init__(self, harness, form="eager", count=2, loss_scale=None, lr=0.1, **options):
        scale = loss_scale or ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)
        self.harness, self.form = harness, form
        self.amp = session(harness, form, loss_scale=scale, **options)
        with self.amp.scope():
            models = [harness.probe([1.0]) for _ in range(count)]
            optimizers = [harness.sgd([model], lr) for model in models]
        prepared = self.amp.prepare(*models, *optimizers)
        self.models, self.optimizers = prepared[:count], prepared[count:]

    def native(self, value):
        return self.amp.to_native(np.float32([value]))

    def loss(self, *inputs):
        """The sum of what the models answer."""
        answers = [model(x) for model, x in zip(self.models, inputs, strict=False)]
        total = answers[0]
        for answer in answers[1:]:
            total = total + answer
        return total

    def weights(self):
        return [float(self.harness.parameters(model).popitem()[1][0]) for model in self.models]

    def gradients(self, index):
        values = self.amp.gradients(self.optimizers[index]).values()
        return [float(np.ravel(self.amp.to_numpy(value))[0]) for value in values]

    def compiled(self, step):
        inner = compiled(self.amp, self.form, step)
        return lambda *values: inner(*map(self.native, values))


def test_an_optimizer_that_was_not_named_gets_nothing(harness, form):
    """A generator's loss goes through the discriminator; the discriminator's own step sees its own loss alone."""
    trio = Trio(harness, form)
    first, second = trio.optimizers

    def step(x, y, z):
        trio.amp.backward(lambda: trio.loss(x, y), first)
        trio.amp.step(first)
        trio.amp.backward(lambda: trio.models[1](z), second)
        trio.amp.step(second)

    step = trio.compiled(step)
    step(1.0, 100.0, 2.0)
    step(1.0, INF, 3.0)  # what leaks could be inf, too
    # The loss of the second step is inf, and the gradient that the first optimizer gets of it is 1 all the same.
    assert trio.weights() == pytest.approx([0.8, 0.5], abs=1e-6)
    assert (trio.amp.applied_steps, trio.amp.skipped_steps) == (4, 0)


@pytest.mark.parametrize("named", [0, 1])
def test_what_was_there_before_stays(harness, named):
    """A loss for one optimizer, after gradients for the other were made and before they are applied."""
    trio = Trio(harness)
    other = 1 - named
    x, y = trio.native(2.0), trio.native(7.0)
    trio.amp.backward(lambda: trio.models[other](x), trio.optimizers[other])
    trio.amp.backward(lambda: trio.loss(y, y), trio.optimizers[named])
    assert trio.gradients(other) == [8.0]
    assert trio.gradients(named) == [28.0]
    for optimizer in trio.optimizers:
        assert trio.amp.step(optimizer).applied
    expected = {named: 0.3, other: 0.8}
    assert trio.weights() == pytest.approx([expected[0], expected[1]], abs=1e-6)


def test_no_gradient_leaks_where_none_was(harness):
    trio = Trio(harness)
    x = trio.native(2.0)
    trio.amp.backward(lambda: trio.loss(x, x), trio.optimizers[0])
    assert trio.gradients(1) == []
    assert trio.amp.gradients(trio.optimizers[1]) == {}
    trio.amp.step(trio.optimizers[0])
    with pytest.warns(ua.StepWarning, match="gradient"):
        assert trio.amp.step(trio.optimizers[1]).reason == "no_gradients"
    assert trio.weights() == pytest.approx([0.8, 1.0], abs=1e-6)


def test_a_loss_that_reaches_nothing_of_the_optimizer_named(harness):
    """A loss of another model: the call is accepted, and no optimizer gets a gradient."""
    trio = Trio(harness)
    x = trio.native(2.0)
    trio.amp.backward(lambda: trio.models[0](x), trio.optimizers[1])
    assert trio.gradients(0) == trio.gradients(1) == []
    with pytest.warns(ua.StepWarning, match="gradient"):
        assert trio.amp.step(trio.optimizers[1]).reason == "no_gradients"
    trio.amp.backward(lambda: trio.loss(x, x), trio.optimizers)
    assert [trio.amp.step(optimizer).applied for optimizer in trio.optimizers] == [True, True]
    assert trio.weights() == pytest.approx([0.8, 0.8], abs=1e-6)


def test_unscaling_one_leaves_the_other_scaled(harness, form):
    trio = Trio(harness, form)
    first, second = trio.optimizers

    def step(x, y):
        trio.amp.backward(lambda: trio.loss(x, y), trio.optimizers)
        trio.amp.clip_grad_norm(first, 1.0)
        trio.amp.step(second)
        trio.amp.clip_grad_value(first, 0.5)
        trio.amp.step(first)

    step = trio.compiled(step)
    for _ in range(3):
        step(4.0, 2.0)
    assert trio.weights() == pytest.approx([1.0 - 3 * 0.05, 1.0 - 3 * 0.2], abs=1e-5)
    assert trio.amp.loss_scale == 8.0


@pytest.mark.parametrize("bad", range(3))
def test_three_with_one_that_skips(harness, form, bad):
    """In any place: two are applied, one is skipped, and the scale is updated once."""
    trio = Trio(harness, form, count=3)

    def step(x, y, z):
        trio.amp.backward(lambda: trio.loss(x, y, z), trio.optimizers)
        for optimizer in trio.optimizers:
            trio.amp.step(optimizer)

    step = trio.compiled(step)
    values = [1.0, 2.0, 3.0]
    values[bad] = INF
    step(1.0, 2.0, 3.0)
    step(*values)
    assert (trio.amp.applied_steps, trio.amp.skipped_steps, trio.amp.loss_scale) == (5, 1, 2.0)
    state = trio.amp.state_dict()["state"]
    assert (state["good_steps"], state["bad_steps"]) == (0, 1)
    expected = [0.8, 0.6, 0.4]
    expected[bad] += 0.1 * (bad + 1)
    assert trio.weights() == pytest.approx(expected, abs=1e-6)


def test_names_are_those_of_the_optimizer_that_skipped(harness, form):
    """Of each iteration by itself, whichever of them it was."""
    trio, told = Trio(harness, form, loss_scale=ua.StaticLossScale(4.0)), []
    x = trio.native(1.0)
    trio.amp.backward(lambda: trio.loss(x, x), trio.optimizers)
    (one,), (two,) = (list(trio.amp.gradients(each)) for each in trio.optimizers)
    for optimizer in trio.optimizers:
        trio.amp.discard_step(optimizer)

    class Observer:
        def on_step_skipped(self, report):
            told.append(report.tensors)

    def step(x, y):
        trio.amp.backward(lambda: trio.loss(x, y), trio.optimizers)
        for optimizer in trio.optimizers:
            trio.amp.step(optimizer)

    trio.amp.observe(Observer())
    step = trio.compiled(step)
    for x, y in ((INF, 1.0), (1.0, INF), (1.0, 1.0), (1.0, INF), (INF, 1.0)):
        step(x, y)
    assert told == [(one,), (two,), (two,), (one,)]


def test_each_step_has_its_result_and_the_scale_is_updated_at_the_end(harness):
    trio, told = Trio(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=1)), []
    for first, second in ((1.0, 1.0), (INF, 1.0), (1.0, INF), (INF, INF)):
        x, y = trio.native(first), trio.native(second)
        trio.amp.backward(lambda x=x, y=y: trio.loss(x, y), trio.optimizers)
        told += [tuple(trio.amp.step(optimizer).values) for optimizer in trio.optimizers]
    assert told == [
        (True, False, "applied", 4.0, 4.0), (True, False, "applied", 4.0, 8.0),
        (False, True, "non_finite", 8.0, 8.0), (True, False, "applied", 8.0, 4.0),
        (True, False, "applied", 4.0, 4.0), (False, True, "non_finite", 4.0, 2.0),
        (False, True, "non_finite", 2.0, 2.0), (False, True, "non_finite", 2.0, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("gradient", [1.0, INF])
def test_a_step_without_gradients_decides_nothing(harness, gradient):
    """It ends the iteration all the same, in which the scale changes by what the others found."""
    trio = Trio(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=1))
    x = trio.native(gradient)
    trio.amp.backward(lambda: trio.models[0](x), trio.optimizers[0])
    trio.amp.step(trio.optimizers[0])
    with pytest.warns(ua.StepWarning, match="gradient"):
        result = trio.amp.step(trio.optimizers[1])
    after = 8.0 if gradient == 1.0 else 2.0
    assert result.reason == "no_gradients"
    assert trio.amp.loss_scale == after
    assert (trio.amp.applied_steps, trio.amp.skipped_steps) == ((1, 0) if gradient == 1.0 else (0, 1))


@pytest.mark.parametrize("gradient", [1.0, INF])
def test_a_discarded_step_decides_nothing(harness, gradient):
    trio = Trio(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=1))
    x, y = trio.native(gradient), trio.native(INF)
    trio.amp.backward(lambda: trio.loss(x, y), trio.optimizers)
    trio.amp.step(trio.optimizers[0])
    trio.amp.unscale(trio.optimizers[1])
    assert trio.amp.discard_step(trio.optimizers[1]).reason == "discarded"
    assert trio.amp.loss_scale == (8.0 if gradient == 1.0 else 2.0)
    x = trio.native(1.0)
    trio.amp.backward(lambda: trio.loss(x, x), trio.optimizers)
    assert [trio.amp.step(optimizer).reason for optimizer in trio.optimizers] == ["applied"] * 2
    assert trio.weights() == pytest.approx([0.8 if gradient == 1.0 else 0.9, 0.9], abs=1e-6)


@pytest.mark.parametrize("gradient", [1.0, INF])
def test_a_step_after_a_discarded_one_ends_the_iteration(harness, gradient):
    """The first is discarded, the second is not: the iteration ends with the second, and the scale changes by it."""
    trio = Trio(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=1))
    x = trio.native(gradient)
    for expected in (8.0, 16.0) if gradient == 1.0 else (2.0, 1.0):
        trio.amp.backward(lambda: trio.loss(x, x), trio.optimizers)
        trio.amp.discard_step(trio.optimizers[0])
        trio.amp.step(trio.optimizers[1])
        assert trio.amp.loss_scale == expected


def test_a_clip_after_a_new_loss(harness):
    """The discriminator trains twice for each step of the generator: each of its gradients is unscaled by itself."""
    trio = Trio(harness, loss_scale=ua.DynamicLossScale(initial_scale=16.0, growth_interval=100))
    first, second = trio.optimizers
    for gradient in (8.0, 6.0):
        x = trio.native(gradient)
        trio.amp.backward(lambda x=x: trio.models[0](x), first)
        norm = trio.amp.clip_grad_norm(first, 2.0)
        assert float(np.ravel(trio.amp.to_numpy(norm))[0]) == pytest.approx(gradient, rel=1e-5)
        trio.amp.step(first)
    x = trio.native(3.0)
    trio.amp.backward(lambda: trio.models[1](x), second)
    trio.amp.step(second)
    assert trio.weights() == pytest.approx([0.6, 0.7], abs=1e-5)


@pytest.mark.needs("accumulation")
def test_windows_of_several_optimizers(harness, form):
    trio = Trio(harness, form, accumulate_steps=2)

    def step(x, y):
        trio.amp.backward(lambda: trio.loss(x, y), trio.optimizers)
        for optimizer in trio.optimizers:
            trio.amp.clip_grad_norm(optimizer, 2.0)
            trio.amp.step(optimizer)

    step = trio.compiled(step)
    for x, y in ((1.0, 8.0), (1.0, 4.0), (INF, 1.0), (1.0, 1.0), (1.0, 2.0), (3.0, 2.0)):
        step(x, y)
    assert trio.weights() == pytest.approx([1.0 - 0.1 - 0.2, 1.0 - 0.2 - 0.1 - 0.2], abs=1e-5)
    assert (trio.amp.applied_steps, trio.amp.skipped_steps, trio.amp.loss_scale) == (5, 1, 2.0)


@pytest.mark.parametrize("clips", ["clip_grad_norm", "clip_grad_value"])
def test_a_clipped_step_without_gradients_leaves_nothing(harness, clips):
    """What comes next is unscaled as ever, whether it is clipped or not."""
    trio = Trio(harness, loss_scale=ua.StaticLossScale(16.0))
    first, second = trio.optimizers
    x = trio.native(2.0)
    for reaches_both in (False, True, False, True):
        if reaches_both:
            trio.amp.backward(lambda: trio.loss(x, x), trio.optimizers)
        else:
            trio.amp.backward(lambda: trio.models[0](x), first)
            getattr(trio.amp, clips)(second, 100.0)
        trio.amp.step(first)
        if reaches_both:
            assert trio.amp.step(second).applied
        else:
            with pytest.warns(ua.StepWarning) if trio.amp.applied_steps == 1 else contextlib.nullcontext():
                assert trio.amp.step(second).reason == "no_gradients"
    assert trio.weights() == pytest.approx([0.2, 0.6], abs=1e-6)


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_of_an_optimizer_that_was_not_named_rest(harness, policy):
    options = {"policy": harness.pure_policies[policy], "master_weights": True}
    trio = Trio(harness, loss_scale=ua.StaticLossScale(16.0), lr=2.0**-3, **options)
    x, y = trio.native(1.0), trio.native(2.0)
    for named, other in ((0, 1), (1, 0), (0, 1)):
        trio.amp.backward(lambda: trio.loss(x, y), trio.optimizers[named])
        assert trio.gradients(other) == []
        assert trio.amp.step(trio.optimizers[named]).applied
    masters = [float(np.ravel(v)[0]) for m in trio.models for v in trio.amp.master_weights(m).values()]
    assert masters == trio.weights() == [1.0 - 2 * 2.0**-3, 1.0 - 2 * 2.0**-3]


def test_an_optimizer_prepared_later_takes_part(harness, form):
    """It shares the scale, and an iteration now ends when it has had its step too."""
    trio = Trio(harness, form, count=1)
    x = trio.native(1.0)
    trio.amp.backward(lambda: trio.models[0](x), trio.optimizers[0])
    trio.amp.step(trio.optimizers[0])
    late = harness.probe([1.0])
    late, optimizer = trio.amp.prepare(late, harness.sgd([late], 0.1))
    trio.models, trio.optimizers = (*trio.models, late), (*trio.optimizers, optimizer)

    def step(x, y):
        trio.amp.backward(lambda: trio.loss(x, y), trio.optimizers)
        for each in trio.optimizers:
            trio.amp.step(each)

    step = trio.compiled(step)
    seen = []
    for x, y in ((1.0, 1.0), (1.0, INF), (1.0, 2.0)):
        step(x, y)
        seen.append(trio.amp.loss_scale)
    assert seen == [8.0, 4.0, 4.0]
    assert trio.weights() == pytest.approx([0.6, 0.7], abs=1e-6)
    assert (trio.amp.applied_steps, trio.amp.skipped_steps) == (6, 1)
