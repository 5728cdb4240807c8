"""Losses that are made of what several autocast regions computed: all of their gradients, or a word about it."""

import warnings

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

LR, SCALE = 0.125, 64.0


def probe(harness, form, **options):
    amp = session(harness, form, loss_scale=SCALE, **options)
    with amp.scope():
        model = harness.probe((1.0, 1.0))
        optimizer = harness.sgd([model], LR)
    return (amp, *amp.prepare(model, optimizer))


def weights(harness, model):
    return [float(np.ravel(value)[0]) for value in harness.parameters(model).values()]


def total_of(amp, model, x, regions):
    """Return the sum of ``regions`` losses, each computed in a region; the sum in another one."""
    losses = []
    for _ in range(regions):
        with amp.autocast():
            losses.append(model(x))
    with amp.autocast():
        return sum(losses[1:], losses[0])


def stepping(amp, model, optimizer, form, regions):
    """Return a step of SGD on the loss of :func:`total_of`."""

    def step(x):
        total = total_of(amp, model, x, regions)
        with amp.scale_loss(total, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)

    return compiled(amp, form, step)


@pytest.mark.needs("context_form")
@pytest.mark.parametrize("regions", [3, 7])
def test_a_loss_of_several_regions(harness, form, regions):
    amp, model, optimizer = probe(harness, form)
    step = stepping(amp, model, optimizer, form, regions)
    for count in (1, 2):
        step(amp.to_native(np.float32([1.0, 2.0])))
        assert weights(harness, model) == [1.0 - LR * regions * count, 1.0 - 2.0 * LR * regions * count]


@pytest.mark.needs("context_form")
@pytest.mark.parametrize("regions", [11, 40])
def test_a_loss_of_many_regions_is_right_or_told_of(harness, form, regions):
    """All gradients, a warning that the first regions are forgotten, or no loss at all; compiled, all gradients."""
    amp, model, optimizer = probe(harness, form)
    step = stepping(amp, model, optimizer, form, regions)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ua.StepWarning)
        try:
            step(amp.to_native(np.float32([1.0, 2.0])))
        except (ua.StepWarning, ua.LossError):
            assert form.startswith("eager")
            assert weights(harness, model) == [1.0, 1.0]
        else:
            assert weights(harness, model) == [1.0 - LR * regions, 1.0 - 2.0 * LR * regions]


def test_a_whole_loss_after_many_regions_is_right(harness):
    """Which are of no use to it: nothing is said of them."""
    amp, model, optimizer = probe(harness, "eager", strict=True)
    x = amp.to_native(np.float32([1.0, 2.0]))
    for _ in range(20):
        with amp.autocast():
            model(x)
    amp.backward(lambda: model(x), optimizer)
    amp.step(optimizer)
    assert weights(harness, model) == [1.0 - LR, 1.0 - 2.0 * LR]


class Pair:
    """A generator ``a * x + b`` and a discriminator ``c * h + d``, and both in float64."""

    def __init__(self, harness, form, **options):
        self.harness = harness
        self.amp = session(harness, form, loss_scale=SCALE, **options)
        starts = ((0.5, 0.25), (0.75, -0.5))
        with self.amp.scope():
            models = [harness.mlp([(np.float32([[weight]]), np.float32([bias]))]) for weight, bias in starts]
            optimizers = [harness.sgd([model], LR) for model in models]
        self.generator, self.critic, *self.optimizers = self.amp.prepare(*models, *optimizers)
        self.want = [np.array(start) for start in starts]

    def step(self, x, y, same_x, same_y):
        """The critic's step, then one of the generator on what it made before that, and on its own output besides.

        The same numbers in other arrays: MXNet frees the inputs that two losses share with the first one's graph.
        """
        amp, (of_generator, of_critic), mean = self.amp, self.optimizers, self.harness.mean_square
        with amp.autocast():
            made = self.generator(x)
        with amp.autocast():
            loss = mean(self.critic(same_y), same_x)
        with amp.scale_loss(loss, of_critic) as scaled_loss:
            scaled_loss.backward()
        amp.step(of_critic)
        with amp.autocast():
            loss = mean(self.critic(made), y) + mean(self.generator(y), x)
        with amp.scale_loss(loss, of_generator) as scaled_loss:
            scaled_loss.backward()
        amp.step(of_generator)

    def expect(self, pairs):
        """Take the steps of a window of ``pairs`` in float64: one of the critic, then one of the generator."""
        (a, b), (c, d) = self.want
        of_critic = [np.mean([2 * (c * y + d - x) * f for x, y in pairs for f in [g(y)]]) for g in (np.float64, _one)]
        used = [(c, d)] * len(pairs)
        self.want[1] = self.want[1] - LR * np.array(of_critic)
        used[-1] = tuple(self.want[1])
        slopes = []
        for (x, y), (c, d) in zip(pairs, used, strict=True):
            through, own = 2 * (c * (a * x + b) + d - y) * c, 2 * (a * y + b - x)
            slopes.append([through * x + own * y, through + own])
        self.want[0] = self.want[0] - LR * np.mean(slopes, axis=0)

    def check(self):
        for model, want in zip((self.generator, self.critic), self.want, strict=True):
            np.testing.assert_allclose(weights(self.harness, model), want, rtol=1e-5)


def _one(_):
    return 1.0


@pytest.mark.needs("context_form", "several_optimizers")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_second_loss_of_what_a_region_before_the_first_one_computed(harness, form, accumulate):
    """As in an adversarial loop: the generator's output serves the critic's step and, after it, the generator's."""
    pair = Pair(harness, form, accumulate_steps=accumulate)
    step = compiled(pair.amp, form, pair.step)
    batches = [(0.5, 1.5), (-1.0, 0.75), (2.0, 0.25), (0.125, -1.0)]
    for start in range(0, len(batches), accumulate):
        window = batches[start : start + accumulate]
        for batch in window:
            step(*[pair.amp.to_native(np.float32([[value]])) for value in batch * 2])
        pair.expect(window)
    pair.check()


def test_evaluation_in_regions_is_no_loss_of_many_regions(harness):
    """Regions without a loss are forgotten; training goes on as before."""
    amp, model, optimizer = probe(harness, "eager")
    x = amp.to_native(np.float32([1.0, 2.0]))
    for count in (1, 2):
        for _ in range(40):
            with amp.inference():
                model(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ua.StepWarning)
            amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)
        assert weights(harness, model) == [1.0 - LR * count, 1.0 - 2.0 * LR * count]


@pytest.mark.needs("context_form")
def test_two_losses_of_one_graph(harness, form):
    """The first one's backward pass keeps what they share, as ``retain_graph=True`` asks; or a compiled step says that
    it cannot.
    """
    amp = session(harness, form, loss_scale=SCALE)
    with amp.scope():
        model = harness.mlp([(np.float32([[0.5]]), np.float32([0.25]))])
        optimizer = harness.sgd([model], LR)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, *targets):
        with amp.autocast():
            made = model(x)
        losses = []
        for target in targets:
            with amp.autocast():
                losses.append(harness.mean_square(made, target))
        for loss, retain_graph in zip(losses, (True, False), strict=True):
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward(retain_graph=retain_graph)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    a, b = 0.5, 0.25
    for x, *targets in ((1.5, 0.5, -2.0), (-0.75, 1.0, 0.125)):
        try:
            step(*[amp.to_native(np.float32([[value]])) for value in (x, *targets)])
        except ua.UnsupportedError:
            assert form != "eager"
            break
        slope = sum(2 * (a * x + b - target) for target in targets)
        a, b = a - LR * slope * x, b - LR * slope
    np.testing.assert_allclose(weights(harness, model), [a, b], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # torch, on a GPU: one backward pass is captured
def test_a_loss_in_a_compiled_call_and_one_after_it(harness, form):
    """Their gradients are added up, or the step is refused until the window is dropped; then training goes on."""
    amp, model, optimizer = probe(harness, form)
    x = amp.to_native(np.float32([1.0, 2.0]))

    def backward(x):
        amp.backward(lambda: model(x), optimizer)

    inside, expected = compiled(amp, form, backward), np.array([1.0, 1.0])
    for _ in range(3):
        inside(x)
        amp.backward(lambda: model(x), optimizer)
        try:
            amp.step(optimizer)
        except ua.StepOrderError:
            amp.discard_step(optimizer)
        else:
            expected -= 2 * LR * np.array([1.0, 2.0])
        assert weights(harness, model) == expected.tolist()
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)
        expected -= LR * np.array([1.0, 2.0])
        assert weights(harness, model) == expected.tolist()


@pytest.mark.needs("context_form")
def test_a_compiled_call_inside_a_region_spares_the_regions_loss(harness, form):
    """The compiled call enters its own region, like an evaluation in the middle of a step."""
    amp, model, optimizer = probe(harness, form)
    x = amp.to_native(np.float32([1.0, 2.0]))

    def look(x):
        with amp.autocast():
            return model(x)

    look = compiled(amp, form, look)
    for count in range(1, 4):
        with amp.autocast():
            loss = model(x)
            look(x)
            with amp.autocast():
                loss = loss + model(x)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        assert weights(harness, model) == [1.0 - 2 * LR * count, 1.0 - 4 * LR * count]
