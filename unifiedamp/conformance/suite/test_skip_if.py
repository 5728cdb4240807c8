"""``amp.skip_if`` drops a step by the user's own condition: nothing is applied, counted or averaged, the scale stays.

The oracle is the reference transition, fed with the steps that no condition dropped, and a step of SGD in Python.
"""

import itertools
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.recorded import Kept
from unifiedamp.loss_scale import ScaleState

INF = math.inf
RATE = 0.25
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)
STEPS = (
    (1.0, False), (1.0, True), (1.0, False), (INF, False), (INF, True), (1.0, True), (math.nan, True), (2.0, False),
    (1.0, True), (2.0, False),
)  # fmt: skip
"""True gradient, and whether the condition holds."""


class Oracle:
    """A weight of 1, its scale and its counts, in plain Python."""

    def __init__(self, settings):
        self.settings, self.state, self.weight = settings, ScaleState(settings.first_scale), 1.0
        self.applied = self.skipped = 0

    def step(self, gradient, dropped):
        """Return the reason that the step must have."""
        if self.settings.enabled and not math.isfinite(gradient):
            self.state, self.skipped = self.settings.next_state(self.state, True), self.skipped + 1
            return "non_finite"
        if dropped:
            return "discarded"
        if self.settings.enabled:
            self.state = self.settings.next_state(self.state, False)
        self.applied, self.weight = self.applied + 1, self.weight - RATE * gradient
        return "applied"

    def numbers(self):
        return self.weight, self.state.scale, self.applied, self.skipped


class Loop:
    """A probe under a session, stepped with a condition that is an argument of the step."""

    def __init__(self, harness, form, clip=None, optimizer="sgd", **options):
        self.harness, self.amp = harness, session(harness, form, **options)
        model = harness.probe([1.0])
        self.model, self.optimizer = self.amp.prepare(model, getattr(harness, optimizer)([model], RATE))
        self.clip, self.result = clip, None
        self.step = compiled(self.amp, form, self._step)

    def _step(self, x, condition):
        self.amp.backward(lambda: self.model(x), self.optimizer)
        if self.clip is not None:
            self.amp.clip_grad_norm(self.optimizer, self.clip)
        self.amp.skip_if(condition)
        self.result = self.amp.step(self.optimizer)

    def native(self, value, dtype=np.float32):
        return self.amp.to_native(np.asarray(value, dtype))

    def feed(self, gradient, condition):
        self.step(self.native([gradient]), condition)

    def weight(self):
        return float(self.harness.parameters(self.model).popitem()[1][0])

    def numbers(self):
        return self.weight(), self.amp.loss_scale, self.amp.applied_steps, self.amp.skipped_steps


@pytest.mark.parametrize(("scale", "clip"), [(SCALE, None), (ua.StaticLossScale(8.0), 64.0), (ua.NoLossScale(), 64.0)])
def test_a_condition_on_the_device(harness, form, scale, clip):
    """With an overflow or without, before and after a clip: the numbers after each step."""
    loop, oracle = Loop(harness, form, clip, loss_scale=scale), Oracle(scale)
    steps = STEPS if scale.enabled else [(1.0 if dropped else 2.0, dropped) for _, dropped in STEPS]
    for gradient, dropped in steps:
        loop.feed(gradient, loop.native(float(dropped)))
        oracle.step(gradient, dropped)
        assert loop.numbers() == oracle.numbers()


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_a_condition_of_any_number(harness, dtype):
    """What is not 0 holds; nan does."""
    loop, oracle = Loop(harness, "eager", loss_scale=SCALE), Oracle(SCALE)
    for value in (0, 1, 0, 3) if dtype == "int32" else (0, 1, math.nan) if dtype == "float32" else (0, 1):
        loop.feed(1.0, loop.native(value, dtype))
        assert loop.result.reason == oracle.step(1.0, value != 0)
        assert loop.numbers() == oracle.numbers()


@pytest.mark.parametrize("make", [bool, int, float, np.bool_, np.float32, np.array])
@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_a_condition_that_the_host_knows(harness, make, scale):
    loop, oracle = Loop(harness, "eager", loss_scale=scale), Oracle(scale)
    for dropped in (False, True, False, True):
        loop.feed(1.0, make(dropped))
        before = oracle.state.scale
        reason = oracle.step(1.0, dropped)
        assert tuple(loop.result.values) == (not dropped, False, reason, before, oracle.state.scale)
        assert loop.numbers() == oracle.numbers()


def test_of_results_observers_and_schedulers(harness):
    """Where the gradients are finite, it is a discarded step; else a skipped one, which is told of."""

    class Observer:
        heard = ()

        def on_step_skipped(self, state, report):
            self.heard = (*self.heard, state.skipped_steps)

    class Scheduler:
        moves = 0

        def step(self):
            self.moves += 1

    loop, observer, scheduler, told = Loop(harness, "eager", loss_scale=SCALE), Observer(), Scheduler(), []
    loop.amp.observe(observer)
    for gradient, dropped in ((1.0, True), (INF, True), (1.0, False)):
        x = loop.native([gradient])
        loop.amp.backward(lambda x=x: loop.model(x), loop.optimizer)
        loop.amp.skip_if(loop.native(float(dropped)))
        told.append(tuple(loop.amp.step(loop.optimizer, scheduler).values))
    assert told == [
        (False, False, "discarded", 4.0, 4.0),
        (False, True, "non_finite", 4.0, 2.0),
        (True, False, "applied", 2.0, 2.0),
    ]
    assert (observer.heard, scheduler.moves) == ((1,), 1)


@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_the_optimizer_keeps_its_state(harness, form, scale):
    """Adam's moments and count move in steps that are applied, and in no other."""
    loops = [Loop(harness, form, optimizer="adam", loss_scale=scale) for _ in range(2)]
    for gradient, dropped in ((1.0, False), (5.0, True), (2.0, False), (7.0, True), (1.5, False)):
        loops[0].feed(gradient, loops[0].native(float(dropped)))
        if not dropped:
            loops[1].feed(gradient, loops[1].native(0.0))
        assert loops[0].numbers() == loops[1].numbers()


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_conditions_are_joined_by_or(harness, form, order):
    loop = Loop(harness, form, loss_scale=SCALE)

    def step(x, one, other):
        loop.amp.backward(lambda: loop.model(x), loop.optimizer)
        loop.amp.skip_if(one)
        loop.amp.skip_if(other)
        loop.amp.skip_if(False)
        loop.amp.step(loop.optimizer)

    step = compiled(loop.amp, form, step)
    step(loop.native([1.0]), *[loop.native(float(each)) for each in order])
    assert loop.numbers() == (1.0, 4.0, 0, 0)
    step(loop.native([1.0]), loop.native(0.0), loop.native(0.0))
    assert loop.numbers() == (0.75, 4.0, 1, 0)


@pytest.mark.parametrize("kinds", [*itertools.product(("bool", "number"), repeat=2)], ids="-".join)
def test_bools_and_numbers_are_joined_by_or(harness, kinds):
    loop = Loop(harness, "eager", loss_scale=SCALE)
    for holds in itertools.product((True, False), repeat=2):
        loop.amp.backward(lambda: loop.model(loop.native([1.0])), loop.optimizer)
        for kind, each in zip(kinds, holds, strict=True):
            loop.amp.skip_if(each if kind == "bool" else loop.native(float(each)))
        assert loop.amp.step(loop.optimizer).applied == (not any(holds)), holds


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize(("place", "scale"), [(0, SCALE), (1, ua.NoLossScale())])
def test_a_window_is_dropped_as_a_whole(harness, form, place, scale):
    """By a condition in any of its micro-batches, which does not reach the next window."""
    loop, oracle = Loop(harness, form, loss_scale=scale, accumulate_steps=2), Oracle(scale)
    for dropped in (False, True, True, False, False):
        for index in range(2):
            loop.feed(3.0 if dropped else 2.0, loop.native(float(dropped and index == place)))
        oracle.step(2.0, dropped)
        assert loop.numbers() == oracle.numbers()


@pytest.mark.needs("accumulation")
def test_windows_with_a_condition_and_without_take_turns(harness, form):
    """Each is compiled by itself: no condition reaches another window, in whatever order they come."""
    loop = Loop(harness, form, loss_scale=SCALE, accumulate_steps=2)

    def plain(x):
        loop.amp.backward(lambda: loop.model(x), loop.optimizer)
        loop.amp.step(loop.optimizer)

    plain, oracle = compiled(loop.amp, form, plain), Oracle(SCALE)
    for condition in (True, None, False, True, None, None, False, True, True, None):
        if condition is None:
            plain(loop.native([2.0]))
        else:
            loop.feed(2.0, loop.native(float(condition)))
        plain(loop.native([2.0]))
        oracle.step(2.0, bool(condition))
        assert loop.numbers() == oracle.numbers()


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_the_open_windows_are_dropped(harness, form, scale):
    """Those that a loss was scaled for, and no later one; the scale follows what was applied."""
    amp = session(harness, form, loss_scale=scale)
    models = [harness.probe([1.0]) for _ in range(2)]
    *models, one, two = amp.prepare(*models, *[harness.sgd([model], RATE) for model in models])

    def step(x, first, both):
        amp.backward(lambda: models[0](x), one)
        amp.skip_if(first)
        amp.backward(lambda: models[1](x), two)
        amp.skip_if(both)
        amp.step(one)
        amp.step(two)

    step, oracle, weights = compiled(amp, form, step), Oracle(scale), [1.0, 1.0]
    for first, both in ((0, 0), (1, 0), (0, 1), (1, 0), (1, 1), (0, 0)):
        step(amp.to_native(np.float32([1.0])), *[amp.to_native(np.float32(each)) for each in (first, both)])
        oracle.step(0.0, bool(both))
        weights = [weights[0] - RATE * (not (first or both)), weights[1] - RATE * (not both)]
        seen = [float(harness.parameters(model).popitem()[1][0]) for model in models]
        assert (seen, amp.loss_scale) == (weights, oracle.state.scale)
    assert (amp.applied_steps, amp.skipped_steps) == (2 + 4, 0)


@pytest.mark.needs("ema")
@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_averages_rest(harness, form, scale):
    loop = Loop(harness, form, loss_scale=scale)
    ema, average = loop.amp.ema(loop.model, 0.5), 1.0
    for dropped in (False, True, False):
        loop.feed(1.0, loop.native(float(dropped)))
        average += 0.0 if dropped else 0.5 * (loop.weight() - average)
        assert float(ema.weights().popitem()[1][0]) == pytest.approx(average)
    assert ema.updates == 2


@pytest.mark.needs("recording")
@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_what_the_recorder_says(harness, scale):
    """A dropped step is one: it has a number, and was not applied."""
    loop, kept = Loop(harness, "eager", loss_scale=scale), Kept()
    with loop.amp.record(kept, every=1):
        for dropped in (False, True, False):
            loop.feed(1.0, loop.native(float(dropped)))
    told = [(each["step"], each["applied"], each["applied_steps"]) for each in kept.of("step")]
    assert told == [(1, True, 1), (2, False, 1), (3, True, 2)]
    assert kept.of("skip") == []


def test_a_discarded_window_takes_its_condition_along(harness):
    loop = Loop(harness, "eager", loss_scale=SCALE)
    loop.amp.backward(lambda: loop.model(loop.native([1.0])), loop.optimizer)
    loop.amp.skip_if(True)
    loop.amp.discard_step(loop.optimizer)
    loop.feed(1.0, False)
    assert loop.numbers() == (0.75, 4.0, 1, 0)


def test_a_loaded_state_takes_conditions_along(harness):
    loop = Loop(harness, "eager", loss_scale=SCALE)
    loop.amp.backward(lambda: loop.model(loop.native([1.0])), loop.optimizer)
    loop.amp.skip_if(loop.native(1.0))
    loop.amp.load_state_dict(loop.amp.state_dict())
    loop.feed(1.0, False)
    assert loop.numbers() == (0.75, 4.0, 1, 0)


def test_without_an_open_window(harness):
    loop = Loop(harness, "eager", loss_scale=SCALE)
    for _ in range(2):  # before the first step, and between two
        with pytest.raises(ua.StepOrderError, match=r"amp\.skip_if: no loss went through"):
            loop.amp.skip_if(True)
        loop.feed(1.0, False)
    assert loop.weight() == 0.5


@pytest.mark.parametrize("wrong", [None, "True", [True], [1.0, 2.0], 1j, np.zeros(2), np.array("x")])
def test_what_is_no_condition(harness, wrong):
    """Nothing is lost by it: the step goes on."""
    loop = Loop(harness, "eager", loss_scale=SCALE)
    loop.amp.backward(lambda: loop.model(loop.native([1.0])), loop.optimizer)
    for each in (wrong, loop.native([0.0, 1.0])):
        with pytest.raises(ua.WrongObjectError, match=r"amp\.skip_if: the condition must be"):
            loop.amp.skip_if(each)
    assert loop.amp.step(loop.optimizer).applied


@pytest.mark.parametrize("scale", ["none", 4.0])
@pytest.mark.parametrize("way", ["skip_if", "discard_step"])
def test_gradients_of_a_dropped_step_are_gone(harness, form, way, scale):
    """Also those that the next loss does not reach."""
    amp = session(harness, form, loss_scale=scale)
    models = [harness.probe([1.0]), harness.probe([1.0])]
    *models, optimizer = amp.prepare(*models, harness.sgd(models, RATE))

    def both(x):
        amp.backward(lambda: models[0](x) + models[1](x), optimizer)
        if way == "skip_if":
            amp.skip_if(True)
            amp.step(optimizer)
        else:
            amp.discard_step(optimizer)

    def first(x):
        amp.backward(lambda: models[0](x), optimizer)
        amp.step(optimizer)

    x = amp.to_native(np.float32([1.0]))
    for step in (first, both, first):
        compiled(amp, form, step)(x)
    assert [harness.parameters(model).popitem()[1].tolist() for model in models] == [[1.0 - 2 * RATE], [1.0]]
    assert amp.applied_steps == 2
