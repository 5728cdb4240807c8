"""A framework's own training loop on prepared objects follows the rules of a step: scale, skips, windows, counts."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import session
from unifiedamp.conformance.oracle import Oracle
from unifiedamp.conformance.recorded import Kept

RATE = 2.0**-4
ROWS = 2
"""In a batch."""


class Line:
    """``w * x + b`` trained by the loop, and the same in float64."""

    def __init__(self, harness, policy="float32", **options):
        self.harness = harness
        self.amp = session(harness, policy=policy, **{"loss_scale": 8.0} | options)
        with self.amp.scope():
            model = harness.mlp([(np.float32([[0.5]]), np.float32([0.25]))])
            optimizer = harness.sgd([model], RATE)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self.values = np.array([0.5, 0.25])

    def fit(self, batches, window=1):
        """One pass; ``batches`` are the inputs, each of which is to give 1. What the loop tells is the true loss."""
        x = np.float32(batches).reshape(-1, 1)
        told = self.harness.fit(self.model, self.optimizer, x, np.ones_like(x), ROWS)
        losses = []
        for start in range(0, len(batches), window):
            taken = np.float64(batches[start : start + window])
            losses += [self.loss(batch) for batch in taken]
            gradient = np.mean([self.gradient(batch) for batch in taken], 0)
            if len(taken) == window and np.isfinite(gradient).all():
                self.values = self.values - RATE * gradient
        assert told == pytest.approx(np.mean(losses), rel=1e-5, nan_ok=True)

    def loop(self, batches):
        """One window of a loop of one's own."""
        for batch in batches:
            x, y = (self.amp.to_native(np.float32(rows).reshape(-1, 1)) for rows in (batch, (1.0, 1.0)))
            self.amp.backward(lambda x=x, y=y: self.harness.mean_square(self.model(x), y), self.optimizer)
            self.amp.step(self.optimizer)
        self.values = self.values - RATE * np.mean([self.gradient(np.float64(batch)) for batch in batches], 0)

    def loss(self, x):
        return np.mean((self.values[0] * x + self.values[1] - 1.0) ** 2)

    def gradient(self, x):
        with np.errstate(invalid="ignore"):
            residual = 2 * (self.values[0] * x + self.values[1] - 1.0)
            return np.array([np.mean(residual * x), np.mean(residual)])

    def check(self, applied, skipped=0):
        own = self.harness.parameters(self.model)
        found = {"bias" in name: float(np.ravel(value)[0]) for name, value in own.items()}
        assert [found[False], found[True]] == pytest.approx(self.values, rel=1e-5)
        assert (self.amp.applied_steps, self.amp.skipped_steps) == (applied, skipped)


BATCHES = [(1.0, 2.0), (-0.5, 1.5), (3.0, 0.25), (1.0, 1.0)]
BAD = (1.0, math.inf)


@pytest.mark.parametrize("scale", ["none", 8.0, "dynamic"])
def test_each_batch_is_a_step(harness, scale):
    line = Line(harness, loss_scale=scale)
    line.fit(BATCHES)
    line.check(4)


@pytest.mark.needs("recording")
@pytest.mark.parametrize("scale", ["none", 8.0])
def test_recorded_steps_train_as_others(harness, scale):
    """What is recorded of every second batch is its own true gradients; of later passes, what is asked for then."""
    line, kept = Line(harness, loss_scale=scale), Kept()
    with line.amp.record(kept, every=2):
        line.fit(BATCHES)
    line.check(4)
    line.fit(BATCHES[:1])
    line.check(5)
    records = kept.of("step")
    assert [(record["step"], len(record["gradients"])) for record in records] == [(1, 2), (2, 2), (4, 2)]
    assert all(record["activations"] for record in records)
    for count, activations in enumerate((False, True), 6):
        later = Kept()
        with line.amp.record(later, activations=activations):
            line.fit(BATCHES[1:2])
        line.check(count)
        assert [bool(record.get("activations")) for record in later.of("step")] == [activations]


@pytest.mark.needs("ema", "float32_weights")
@pytest.mark.parametrize("scale", ["none", "dynamic"])
def test_an_average_moves_with_each_batch(harness, scale):
    """And not with one that is skipped."""
    line = Line(harness, loss_scale=scale)
    average = AverageOracle(0.75)
    ema = line.amp.ema(line.model, 0.75)
    for batch in (BATCHES[0], BATCHES[1], *([BAD] if scale == "dynamic" else []), BATCHES[2]):
        before = line.amp.master_weights(line.model)
        line.fit([batch])
        if batch is not BAD:
            average.step(before, line.amp.master_weights(line.model))
    average.check(ema.weights(), rtol=1e-5)
    assert ema.updates == 3


def test_an_average_that_was_made_between_two_passes_moves(harness):
    line = Line(harness)
    line.fit(BATCHES[:2])
    ema, oracle = line.amp.ema(line.model, 0.5), AverageOracle(0.5)
    for batch in BATCHES[2:4]:
        before = harness.parameters(line.model)
        line.fit([batch])
        oracle.step(before, harness.parameters(line.model))
    oracle.check(ema.weights())
    assert ema.updates == 2


@pytest.mark.needs("ema")
def test_it_is_refused_while_an_average_is_swapped_in(harness):
    """It would train the average; afterwards it trains the model's own weights."""
    line = Line(harness)
    ema = line.amp.ema(line.model, 0.5)
    line.fit(BATCHES)
    with ema.swapped():
        before = harness.parameters(line.model)
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            line.fit(BATCHES)
        assert str(harness.parameters(line.model)) == str(before)
    line.check(4)
    line.fit(BATCHES)
    line.check(8)


def test_an_overflow_skips_a_batch(harness):
    line = Line(harness, loss_scale=ua.DynamicLossScale(initial_scale=8.0, growth_interval=3))
    line.fit([BATCHES[0], BAD, BATCHES[1], BATCHES[2]])
    line.check(3, 1)
    assert line.amp.loss_scale == 4.0
    line.fit([BATCHES[3]])
    line.check(4, 1)
    assert line.amp.loss_scale == 8.0


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("scale", ["none", 8.0])
def test_windows_apply_their_mean(harness, scale):
    line = Line(harness, accumulate_steps=2, loss_scale=scale)
    line.fit(BATCHES, window=2)
    line.check(2)


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("bad", [0, 1])
def test_an_overflow_anywhere_discards_its_window(harness, bad):
    line = Line(harness, accumulate_steps=2, loss_scale=ua.DynamicLossScale(initial_scale=8.0, growth_interval=3))
    batches = list(BATCHES)
    batches[bad] = BAD
    line.fit(batches, window=2)
    line.check(1, 1)
    assert line.amp.loss_scale == 4.0


@pytest.mark.parametrize("checks_first", [False, True])
def test_a_loop_in_the_frameworks_own_form(harness, form, checks_first):
    """Its scaler is the session's: the same scales, skips and counts."""
    if not form.startswith("eager"):
        pytest.skip("the loop is not compiled")
    settings = {"growth_interval": 1, "hysteresis": 2} if checks_first else {"growth_interval": 3, "hysteresis": 1}
    amp = session(harness, form, loss_scale=ua.DynamicLossScale(4.0, **settings))
    with amp.scope():
        model = harness.probe([1.0, -2.0])
        optimizer = harness.sgd([model], 0.1)
    step = harness.native_loop(amp, model, optimizer, checks_first)
    oracle = Oracle([1.0, -2.0], scale=4.0, **settings)
    for feed in (1.0, 0.5, 2.0, math.inf, 1.0, math.nan, math.nan, -1.0, 0.25, 0.5, 1.0):
        step(amp.to_native(np.float32([1.0, feed])))
        oracle.feed([1.0, feed])
        found = [float(np.ravel(value)[0]) for value in harness.parameters(model).values()]
        assert found == pytest.approx(oracle.weights, rel=1e-5)
        assert (amp.loss_scale, amp.applied_steps, amp.skipped_steps) == (oracle.scale, oracle.applied, oracle.skipped)


def test_a_loop_of_ones_own_goes_on(harness):
    """Steps of both kinds are counted together, and share the scale."""
    line = Line(harness, loss_scale=ua.DynamicLossScale(initial_scale=8.0, growth_interval=3))
    line.fit(BATCHES[:2])
    line.loop(BATCHES[2:3])
    line.check(3)
    assert line.amp.loss_scale == 16.0
    line.fit([BAD, BATCHES[3]])
    line.check(4, 1)
    assert line.amp.loss_scale == 8.0


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("end", ["discarded", "loaded", "failed", "looped"])
def test_a_window_that_was_open_is_dropped(harness, end):
    """By ``discard_step``, a loaded state, a batch that does not fit, a loop's window: the next pass begins one."""
    line = Line(harness, accumulate_steps=2, loss_scale=8.0)
    state, applied = line.amp.state_dict(), 2
    line.fit(BATCHES[:1], window=2)
    line.check(0)
    if end == "discarded":
        line.amp.discard_step(line.optimizer)
    elif end == "loaded":
        line.amp.load_state_dict(state)
    elif end == "failed":
        for _ in range(2):  # a batch that is counted before it fails would end the open window, and begin another
            with pytest.raises(Exception):  # noqa: B017  # the framework's own
                harness.fit(line.model, line.optimizer, np.ones((4, 3), np.float32), np.ones((4, 1), np.float32), ROWS)
    else:
        line.loop(BATCHES[1:3])
        applied = 3
    line.fit(BATCHES, window=2)
    line.check(applied)


def test_observers_hear_of_its_steps(harness):
    """And what they raise ends the loop, as an exhausted scale does."""
    told = []

    class Observer:
        def on_step_skipped(self, state):
            told.append(("skipped", state.skipped_steps))

        def on_scale_changed(self, before, after):
            told.append((before, after))

    line = Line(harness, loss_scale=ua.DynamicLossScale(8.0, growth_interval=2, max_consecutive_skips=2))
    line.amp.observe(Observer())
    line.fit([*BATCHES[:2], BAD, BATCHES[2]])
    line.check(3, 1)
    assert ("skipped", 1) in told
    assert [each for each in told if each[0] != "skipped"] == [(8.0, 16.0), (16.0, 8.0)]
    with pytest.raises(ua.LossScaleExhausted):
        line.fit([BAD] * 3)
    assert line.amp.skipped_steps in (3, 4)


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
def test_without_a_scale_nothing_is_scaled_or_skipped(harness):
    """Whatever the policy is: a loop may know a loss scale of the framework, which the session did not ask for."""
    line = Line(harness, "mixed_float16", loss_scale="none")
    x = np.float32(BAD).reshape(-1, 1)
    harness.fit(line.model, line.optimizer, x, np.ones_like(x), ROWS)
    assert not any(np.isfinite(value).any() for value in harness.parameters(line.model).values())


@pytest.mark.needs("recording", "accumulation")
def test_recorded_windows_train_as_others(harness):
    """A window is one record, and applies the mean of the same gradients."""
    line, kept = Line(harness, accumulate_steps=2), Kept()
    with line.amp.record(kept, every=1):
        line.fit(BATCHES, window=2)
    line.check(2)
    records = kept.of("step")
    assert [(record["step"], record["applied_steps"]) for record in records] == [(1, 1), (2, 2)]
    assert all(len(record["gradients"]) == 2 and record["activations"] for record in records)
