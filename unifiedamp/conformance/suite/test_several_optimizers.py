"""Several optimizers share one scale: each skips by itself, the scale is updated once per iteration."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

pytestmark = pytest.mark.needs("several_optimizers")

INF = math.inf
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)


class Pair:
    """Two probe models, each with its own optimizer, one session."""

    def __init__(self, harness, form, size=1, **options):
        self.harness, self.amp, self.size = harness, session(harness, form, loss_scale=SCALE, **options), size
        first, second = harness.probe([1.0] * size), harness.probe([1.0] * size)
        one, two = harness.sgd([first], 0.1), harness.sgd([second], 0.1)
        self.models = [None, None]
        self.optimizers = [None, None]
        self.models[0], self.models[1], self.optimizers[0], self.optimizers[1] = self.amp.prepare(
            first, second, one, two
        )

    def native(self, value):
        return self.amp.to_native(np.array([value] * self.size, np.float32))

    def weights(self):
        return [float(self.harness.parameters(model).popitem()[1][0]) for model in self.models]

    def train(self, index, x):
        model, optimizer = self.models[index], self.optimizers[index]
        self.amp.backward(lambda: model(x), optimizer)
        self.amp.step(optimizer)


def test_each_skips_by_itself_and_the_scale_is_updated_once(harness, form):
    pair = Pair(harness, form)

    def step(x, y):
        pair.train(0, x)
        pair.train(1, y)

    step = compiled(pair.amp, form, step)
    seen = []
    for x, y in ((1.0, 1.0), (INF, 1.0), (1.0, INF), (1.0, INF), (INF, INF), (1.0, 1.0), (1.0, 1.0)):
        step(pair.native(x), pair.native(y))
        seen.append(pair.amp.loss_scale)
    assert seen == [4.0, 2.0, 1.0, 0.5, 0.25, 0.25, 0.5]
    assert pair.weights() == pytest.approx([0.5, 0.6], abs=1e-6)
    assert (pair.amp.applied_steps, pair.amp.skipped_steps) == (9, 5)


@pytest.mark.needs("context_form")
def test_a_discarded_step_spares_the_other_optimizers_loss_of_the_same_region(harness):
    pair = Pair(harness, "eager")
    for index in range(2):
        with pair.amp.autocast():
            losses = [model(pair.native(1.0)) for model in pair.models]
        with pair.amp.scale_loss(losses[0], pair.optimizers[0]) as scaled_loss:
            scaled_loss.backward()
        pair.amp.discard_step(pair.optimizers[0])
        with pair.amp.scale_loss(losses[1], pair.optimizers[1]) as scaled_loss:
            scaled_loss.backward()
        assert pair.amp.step(pair.optimizers[1]).applied
        assert pair.weights() == pytest.approx([1.0, 0.9 - 0.1 * index], abs=1e-6)


@pytest.mark.needs("context_form", "accumulation")
def test_micro_batches_of_two_losses_from_one_region(harness):
    """The first optimizer's micro-batch ends before the second one's loss is scaled."""
    pair = Pair(harness, "eager", accumulate_steps=2)
    for gradient in (1.0, 3.0, 2.0, 2.0):
        with pair.amp.autocast():
            losses = [model(pair.native(gradient)) for model in pair.models]
        for loss, optimizer in zip(losses, pair.optimizers, strict=True):
            with pair.amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            pair.amp.step(optimizer)
    assert pair.weights() == pytest.approx([0.6, 0.6], abs=1e-6)
    assert (pair.amp.applied_steps, pair.amp.loss_scale) == (4, 8.0)


@pytest.mark.needs("context_form")
def test_losses_of_one_region_train_over_two_iterations(harness):
    """The first optimizer's second loss begins one, and the other's loss is part of it."""
    pair = Pair(harness, "eager")
    one, two = pair.optimizers
    with pair.amp.autocast():
        losses = [pair.models[index](pair.native(gradient)) for index, gradient in ((0, 1.0), (0, 2.0), (1, 4.0))]
    for loss, optimizer in zip(losses, (one, one, two), strict=True):
        with pair.amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        assert pair.amp.step(optimizer).applied
    assert pair.weights() == pytest.approx([0.7, 0.6], abs=1e-6)
    assert pair.amp.loss_scale == 8.0


def test_a_second_step_in_one_iteration_is_refused(harness):
    """There was one loss for both optimizers; the other one's step is right."""
    pair = Pair(harness, "eager")
    one, two = pair.optimizers
    first, second = pair.models
    pair.amp.backward(lambda: first(pair.native(1.0)) + second(pair.native(1.0)), [one, two])
    assert pair.amp.step(one).applied
    for call in (pair.amp.step, pair.amp.unscale):
        with pytest.raises(ua.StepOrderError, match="already had its step"):
            call(one)
    assert pair.amp.step(two).applied
    assert pair.weights() == pytest.approx([0.9, 0.9], abs=1e-6)
    assert (pair.amp.applied_steps, pair.amp.skipped_steps) == (2, 0)


def test_one_loss_for_two_optimizers(harness, form):
    pair = Pair(harness, form)
    first, second = pair.models

    def step(x, y):
        pair.amp.backward(lambda: first(x) + second(y), pair.optimizers)
        for optimizer in pair.optimizers:
            pair.amp.step(optimizer)

    step = compiled(pair.amp, form, step)
    step(pair.native(1.0), pair.native(2.0))
    step(pair.native(1.0), pair.native(2.0))
    assert pair.weights() == pytest.approx([0.8, 0.6], abs=1e-6)
    assert pair.amp.loss_scale == 8.0


def test_training_one_more_often_than_the_other(harness):
    """A new loss for an optimizer that had its step begins the next iteration."""
    pair = Pair(harness, "eager")
    scales = []
    for _ in range(3):
        for gradient in (1.0, 1.0, INF):
            pair.train(0, pair.native(gradient))
        pair.train(1, pair.native(1.0))
        scales.append(pair.amp.loss_scale)
    assert scales == [4.0, 4.0, 4.0]
    assert pair.weights() == pytest.approx([0.4, 0.7], abs=1e-6)


def test_an_optimizer_without_gradients_is_left_alone(harness):
    pair = Pair(harness, "eager")
    x = pair.native(1.0)
    pair.amp.backward(lambda: pair.models[0](x), pair.optimizers[0])
    assert pair.amp.step(pair.optimizers[0]).applied
    with pytest.warns(ua.StepWarning, match="gradient"):
        result = pair.amp.step(pair.optimizers[1])
    assert (result.applied, result.found_inf, result.reason) == (False, False, "no_gradients")
    assert pair.weights() == pytest.approx([0.9, 1.0])
    assert pair.amp.state_dict()["state"]["good_steps"] == 1


def test_an_interrupted_step_ends_the_iteration_of_the_others(harness):
    """What they found is counted then, once, and not with the next iteration."""
    pair = Pair(harness, "eager")

    def failing():
        raise KeyError

    pair.train(0, pair.native(INF))
    with pytest.raises(KeyError):
        pair.amp.backward(failing, pair.optimizers[1])
    seen = [pair.amp.loss_scale]
    for _ in range(2):
        for index in range(2):
            pair.train(index, pair.native(1.0))
        seen.append(pair.amp.loss_scale)
    assert seen == [2.0, 2.0, 4.0]
    assert (pair.amp.applied_steps, pair.amp.skipped_steps) == (4, 1)


def test_an_interrupted_step_brings_back_nothing_that_was_found_before(harness):
    """An overflow of the iteration before, which ended with a step of the optimizer that is interrupted."""
    pair = Pair(harness, "eager")

    def failing():
        raise KeyError

    for index, gradient in enumerate((INF, 1.0)):
        pair.train(index, pair.native(gradient))
    seen = [pair.amp.loss_scale]
    with pytest.raises(KeyError):
        pair.amp.backward(failing, pair.optimizers[1])
    for index in (0, 0, 1):
        pair.train(index, pair.native(1.0))
        seen.append(pair.amp.loss_scale)
    assert seen == [2.0, 2.0, 2.0, 4.0]
    assert (pair.amp.applied_steps, pair.amp.skipped_steps) == (4, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_loss_for_both_ends_an_iteration_that_one_left_open(harness, first):
    """One of the two had its step in it, and overflowed: the loss is scaled by what follows from that."""
    pair = Pair(harness, "eager")
    pair.train(0, pair.native(INF))
    x = pair.native(1.0)
    named = [pair.optimizers[first], pair.optimizers[1 - first]]
    pair.amp.backward(lambda: pair.models[0](x) + pair.models[1](x), named)
    assert pair.amp.loss_scale == 2.0
    for optimizer in named:
        assert pair.amp.step(optimizer).applied
    assert pair.amp.state_dict()["state"]["good_steps"] == 1
    assert pair.weights() == pytest.approx([0.9, 0.9])


def test_a_partly_applied_update_is_of_one_optimizer(harness):
    """The other optimizer continues, even where one of its calls was interrupted before."""
    pair = Pair(harness, "eager", size=2)
    context = harness.interrupted_update(pair.optimizers[0], KeyError())
    if context is None:
        pytest.skip("updates make new values, so none is ever applied in part")

    def failing():
        raise KeyError

    with context, pytest.raises(KeyError):
        pair.train(0, pair.native(1.0))
    with pytest.raises(KeyError):
        pair.amp.backward(failing, pair.optimizers[1])
    pair.train(1, pair.native(1.0))
    with pytest.raises(ua.StepOrderError, match="interrupted by KeyError"):
        pair.train(0, pair.native(1.0))
    assert pair.weights() == pytest.approx([1.0, 0.9])  # the second parameter of each
    pair.amp.discard_step(pair.optimizers[0])
    for index in range(2):
        pair.train(index, pair.native(1.0))
    assert pair.weights() == pytest.approx([0.9, 0.8])


@pytest.mark.filterwarnings("ignore::unifiedamp.StepWarning")
@pytest.mark.parametrize("first", [0, 1])
def test_the_iteration_ends_with_a_step_without_gradients(harness, form, first):
    """The scale is updated by what the first step found, where no gradient reached the last."""
    pair = Pair(harness, form)
    order = (pair.optimizers[first], pair.optimizers[1 - first])

    def step(x):
        pair.amp.backward(lambda: pair.models[first](x), pair.optimizers)
        for optimizer in order:
            pair.amp.step(optimizer)

    step, seen = compiled(pair.amp, form, step), []
    for x in (INF, 1.0, 1.0, INF, 1.0):
        step(pair.native(x))
        seen.append(pair.amp.loss_scale)
    assert seen == [2.0, 2.0, 4.0, 2.0, 2.0]
    weights = pair.weights()
    assert (weights[1 - first], weights[first]) == (1.0, pytest.approx(0.7, abs=1e-6))
    assert pair.amp.skipped_steps == 2
    assert pair.amp.applied_steps in (3, 8)  # a framework may have zeros where no gradient is


@pytest.mark.parametrize("together", [True, False], ids=["one loss", "two losses"])
def test_two_over_one_parameter_train_right_or_are_refused(harness, together):
    """When they are prepared, or when both would use its one gradient; one after the other each trains."""
    amp = session(harness, loss_scale=4.0)
    model = harness.probe([1.0])
    model, first = amp.prepare(model, harness.sgd([model], 0.25))
    try:
        _, second = amp.prepare(model, harness.sgd([model], 0.125))
    except ua.PrepareError:
        return
    x = amp.to_native(np.float32([1.0]))
    try:
        for named in [[first, second]] if together else [[first], [second]]:
            amp.backward(lambda: model(x), named)
        assert all([amp.step(first).applied, amp.step(second).applied])
    except ua.StepOrderError:
        amp.discard_step(first)
        for optimizer in (first, second):
            amp.backward(lambda: model(x), optimizer)
            assert amp.step(optimizer).applied
    assert harness.parameters(model).popitem()[1].tolist() == [1.0 - 0.25 - 0.125]


def test_an_optimizer_that_is_named_twice_gets_its_gradients_once(harness, form):
    pair = Pair(harness, form)
    first, second = pair.models
    one, two = pair.optimizers

    def step(x):
        pair.amp.backward(lambda: first(x) + second(x), [one, two, one])
        for optimizer in pair.optimizers:
            pair.amp.step(optimizer)

    step = compiled(pair.amp, form, step)
    for _ in range(2):
        step(pair.native(1.0))
    assert pair.weights() == pytest.approx([0.8, 0.8], abs=1e-6)
    assert (pair.amp.applied_steps, pair.amp.loss_scale) == (4, 8.0)


@pytest.mark.parametrize("order", ["losses first", "each in turn"])
def test_two_of_one_parameter_apply_their_own_losses(harness, order):
    """Or are refused, at ``prepare`` or at a loss while the other's window is open."""
    amp = session(harness, loss_scale=SCALE)
    model = harness.probe([10.0])
    one, two = harness.sgd([model], 0.5), harness.sgd([model], 0.25)
    x, y = (amp.to_native(np.float32([value])) for value in (1.0, 8.0))
    try:
        model, one, two = amp.prepare(model, one, two)
        amp.backward(lambda: model(x), one)
        if order == "each in turn":
            assert amp.step(one).applied
        amp.backward(lambda: model(y), two)
    except (ua.PrepareError, ua.StepOrderError):
        return
    if order == "losses first":
        assert amp.step(one).applied
    assert amp.step(two).applied
    assert float(harness.parameters(model)["w0"][0]) == pytest.approx(10.0 - 0.5 * 1.0 - 0.25 * 8.0)
