"""What results, observers, schedulers and the recorder are told of each kind of step."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.conformance.recorded import Kept
from unifiedamp.conformance.suite.test_skip_if import SCALE, STEPS
from unifiedamp.conformance.suite.test_skip_if import Loop as ConditionLoop
from unifiedamp.conformance.suite.test_skip_if import Oracle as ConditionOracle

INF = math.inf


class Observer:
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def on_step_skipped(self, state, report):
        self.heard.append(("skipped", state.skipped_steps, report.tensors))

    def on_scale_changed(self, before, after):
        self.heard.append(("scale", before, after))

    def take(self):
        heard, self.heard = self.heard, []
        return heard


class Scheduler:
    """Counts its moves."""

    moves = 0

    def step(self):
        self.moves += 1


class Loop:
    """A probe under a session, stepped with a scheduler, watched by an observer; uncompiled in every form."""

    def __init__(self, harness, form, growth_interval=2, **options):
        scale = ua.DynamicLossScale(initial_scale=4.0, growth_interval=growth_interval)
        self.amp = session(harness, form, **{"loss_scale": scale} | options)
        model = harness.probe([1.0, 1.0])
        self.model, self.optimizer = self.amp.prepare(model, harness.sgd([model], 0.1))
        self.observer, self.scheduler = Observer(), Scheduler()
        self.amp.observe(self.observer)

    def backward(self, *gradients):
        x = self.amp.to_native(np.float32(gradients))
        self.amp.backward(lambda: self.model(x), self.optimizer)

    def feed(self, *gradients):
        self.backward(*gradients)
        return self.amp.step(self.optimizer, self.scheduler)


def test_of_applied_and_skipped_steps(harness, form):
    loop = Loop(harness, form)
    names = tuple(harness.parameters(loop.model))
    told = [
        tuple(loop.feed(*pair).values) for pair in ((1.0, 1.0), (1.0, 1.0), (INF, 1.0), (INF, math.nan), (1.0, 1.0))
    ]
    assert told == [
        (True, False, "applied", 4.0, 4.0), (True, False, "applied", 4.0, 8.0), (False, True, "non_finite", 8.0, 4.0),
        (False, True, "non_finite", 4.0, 2.0), (True, False, "applied", 2.0, 2.0),
    ]  # fmt: skip
    heard = loop.observer.take()
    assert [event[:2] for event in heard] == [
        ("scale", 4.0),
        ("skipped", 1),
        ("scale", 8.0),
        ("skipped", 2),
        ("scale", 4.0),
    ]
    assert loop.scheduler.moves == 3
    assert [event[2] for event in heard if event[0] == "skipped"] == [names[:1], names]


def test_of_results_that_are_looked_at_late(harness, form):
    """A result describes the step that returned it, whenever it is read."""
    loop = Loop(harness, form)
    results = []
    for pair in ((1.0, 1.0), (1.0, 1.0), (INF, 1.0), (1.0, 1.0)):
        loop.backward(*pair)
        results.append(loop.amp.step(loop.optimizer))
    loop.amp.load_state_dict(Loop(harness, form).amp.state_dict())
    assert [(each.reason, each.scale, each.next_scale) for each in results] == [
        ("applied", 4.0, 4.0), ("applied", 4.0, 8.0), ("non_finite", 8.0, 4.0), ("applied", 4.0, 4.0),
    ]  # fmt: skip


def test_of_discarded_steps(harness, form):
    """Nobody hears anything: no skip, no scale, no count, and the scheduler rests."""
    loop = Loop(harness, form, growth_interval=1)
    for gradient in (INF, 1.0):
        loop.backward(gradient, 1.0)
        loop.amp.unscale(loop.optimizer)
        assert tuple(loop.amp.discard_step(loop.optimizer).values) == (False, False, "discarded", 4.0, 4.0)
    assert (loop.observer.take(), loop.scheduler.moves) == ([], 0)
    assert (loop.amp.applied_steps, loop.amp.skipped_steps) == (0, 0)
    loop.backward(1.0, 1.0)
    result = loop.amp.discard_step(loop.optimizer)
    assert result.scale == 4.0
    loop.feed(1.0, 1.0)
    assert (loop.observer.take(), loop.scheduler.moves) == ([("scale", 4.0, 8.0)], 1)
    assert (result.scale, result.next_scale) == (4.0, 4.0), "what was read stays"


@pytest.mark.needs("recording")
def test_of_a_skip_after_a_recording(harness, form):
    """It is said whether the loss was finite, as before; recording leaves no trace."""
    loop, reports = Loop(harness, form), []

    class Reports:
        def on_step_skipped(self, report):
            reports.append(report.loss_was_finite)

    loop.amp.observe(Reports())
    loop.feed(INF, 1.0)
    with loop.amp.record(Kept(), every=1):
        loop.feed(1.0, 1.0)
    loop.feed(INF, 1.0)
    assert reports[0] == reports[-1]
    assert len(reports) == 2


@pytest.mark.needs("accumulation")
def test_of_micro_batches(harness, form):
    loop = Loop(harness, form, growth_interval=1, accumulate_steps=2)
    for pair in ((INF, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)):
        loop.feed(*pair)
    assert [event[:2] for event in loop.observer.take()] == [("skipped", 1), ("scale", 4.0), ("scale", 2.0)]
    assert loop.scheduler.moves == 1


def test_of_loaded_states(harness, form):
    """A loaded state is no news: not its scale, and not its skips."""
    loop, other = Loop(harness, form), Loop(harness, form)
    for pair in ((INF, 1.0), (1.0, 1.0)):
        other.feed(*pair)
    loop.amp.load_state_dict(other.amp.state_dict())
    assert loop.observer.take() == []
    result = loop.feed(1.0, 1.0)
    assert loop.observer.take() == [("scale", 2.0, 4.0)]
    assert (result.scale, result.next_scale) == (2.0, 4.0)
    assert (loop.amp.applied_steps, loop.amp.skipped_steps) == (2, 1)
    loop.amp.load_state_dict({**other.amp.state_dict(), "state": {**other.amp.state_dict()["state"], "scale": 32.0}})
    result = loop.feed(1.0, 1.0)
    assert (result.scale, result.next_scale) == (32.0, 64.0)
    assert loop.observer.take() == [("scale", 32.0, 64.0)]


def test_of_a_session_without_a_scale(harness, form):
    loop = Loop(harness, form, loss_scale="none")
    results = [tuple(loop.feed(gradient, 1.0).values) for gradient in (1.0, 2.0)]
    assert results == [(True, False, "applied", 1.0, 1.0)] * 2
    assert (loop.observer.take(), loop.scheduler.moves) == ([], 2)
    assert (loop.amp.loss_scale, loop.amp.applied_steps, loop.amp.skipped_steps) == (1.0, 2, 0)


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("scale", ["none", 4.0])
def test_of_steps_without_gradients(harness, scale):
    amp = session(harness, loss_scale=scale)
    models = [harness.probe([1.0]) for _ in range(2)]
    *_, one, two = amp.prepare(*models, *[harness.sgd([model], 0.1) for model in models])
    observer, schedulers = Observer(), [Scheduler(), Scheduler()]
    amp.observe(observer)
    x = amp.to_native(np.float32([1.0]))
    amp.backward(lambda: models[0](x), one)
    amp.step(one, schedulers[0])
    with pytest.warns(ua.StepWarning, match="gradient"):
        result = amp.step(two, schedulers[1])
    number = 1.0 if scale == "none" else scale
    assert tuple(result.values) == (False, False, "no_gradients", number, number)
    assert (observer.heard, [each.moves for each in schedulers]) == ([], [1, 0])
    assert (amp.applied_steps, amp.skipped_steps) == (1, 0)


@pytest.mark.needs("recording")
def test_the_recorder_of_discarded_steps(harness, form):
    """A discarded step is none: it has no number and no record, and the next one is recorded in its place."""
    loop, kept = Loop(harness, form), Kept()
    with loop.amp.record(kept, every=3) as recorder:
        loop.backward(INF, 1.0)
        loop.amp.unscale(loop.optimizer)
        loop.amp.discard_step(loop.optimizer)
        assert (recorder.step, kept.of("step"), kept.of("skip")) == (0, [], [])
        for gradient in (1.0, 2.0, 4.0):
            loop.feed(gradient, 1.0)
    records = kept.of("step")
    assert [(each["step"], each["reason"], each["applied_steps"]) for each in records] == [
        (1, "first", 1),
        (3, "every", 3),
    ]
    assert [list(each["gradients"]["w0"]["true"]["exponents"]) for each in records] == [["0"], ["2"]]
    assert all(each["non_finite"] is None for each in records)


@pytest.mark.needs("recording", "accumulation")
def test_the_recorder_of_a_window_cut_short(harness, form):
    """What was noted of a discarded window is not counted with the next one."""
    loop, kept = Loop(harness, form, accumulate_steps=2), Kept()
    with loop.amp.record(kept, every=1):
        loop.feed(64.0, 1.0)
        loop.backward(64.0, 1.0)
        loop.amp.discard_step(loop.optimizer)
        for gradient in (2.0, 2.0, 4.0, 4.0):
            loop.feed(gradient, 1.0)
    told = [list(each["gradients"]["w0"]["true"]["exponents"]) for each in kept.of("step")]
    assert told == [["1"], ["2"]]
    assert [each["step"] for each in kept.of("step")] == [1, 2]


@pytest.mark.needs("recording")
def test_the_recorder_of_a_loaded_state(harness, form):
    """Skips of the state that was loaded are no skips of this run."""
    loop, other, kept = Loop(harness, form), Loop(harness, form), Kept()
    other.feed(INF, 1.0)
    with loop.amp.record(kept, every=1):
        loop.feed(1.0, 1.0)
        loop.amp.load_state_dict(other.amp.state_dict())
        loop.feed(1.0, 1.0)
    assert kept.of("skip") == []
    assert [each["scale"] for each in kept.of("step")] == [4.0, 2.0]
    assert all(each["applied"] for each in kept.of("step"))


def test_every_observer_hears(harness):
    """The first one too, after a second was added."""
    run, observers = probe_run(harness, loss_scale=ua.DynamicLossScale(initial_scale=4.0)), [Observer(), Observer()]
    for observer in observers:
        run.amp.observe(observer)
    run.feed(INF)
    names = tuple(harness.parameters(run.model))
    assert [observer.take() for observer in observers] == [[("skipped", 1, names), ("scale", 4.0, 2.0)]] * 2


def test_a_compiled_step_that_returns_its_result(harness, form):
    """Each call's result is its own; where a trace has none to return, the message says what to read instead."""
    amp = session(harness, form, loss_scale=ua.DynamicLossScale(initial_scale=4.0))
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))

    def step(x):
        amp.backward(lambda: model(x), optimizer)
        return amp.step(optimizer)

    step, results, refusal = compiled(amp, form, step), [], None
    for gradient in (1.0, INF, 1.0):
        try:
            results.append(step(amp.to_native(np.float32([gradient]))))
        except ua.StepOrderError as error:
            refusal = str(error)
    if refusal is None:
        told = [(result.reason, result.scale, result.next_scale) for result in results]
        assert told == [("applied", 4.0, 4.0), ("non_finite", 4.0, 2.0), ("applied", 2.0, 2.0)]
    else:
        assert "amp.skipped_steps after the call" in refusal
        assert harness.parameters(model).popitem()[1].tolist() == [1.0]


@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_of_steps_with_conditions(harness, scale):
    """Uncompiled, wherever the scale is kept; nothing but the results is read in between."""
    for form in [each for each in harness.forms if each.startswith("eager")]:
        loop, oracle, found, expected = ConditionLoop(harness, form, loss_scale=scale), ConditionOracle(scale), [], []
        for gradient, dropped in STEPS if scale.enabled else [(1.0, dropped) for _, dropped in STEPS]:
            before = oracle.state.scale
            loop.feed(gradient, loop.native(float(dropped)))
            found.append(loop.result)
            reason = oracle.step(gradient, dropped)
            expected.append((reason == "applied", reason == "non_finite", reason, before, oracle.state.scale))
        assert [tuple(each.values) for each in found] == expected, form
