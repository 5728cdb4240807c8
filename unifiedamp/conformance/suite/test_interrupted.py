"""An exception or a signal out of any call: no gradient is applied that is not the mean of whole micro-batches.

The probe's gradients are its input, so with SGD each call of the step may change the weights by exactly what it was
fed, or by nothing.
"""

import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

LR = 0.5
FEEDS = [(1.0, 2.0), (0.5, 4.0), (3.0, 0.25), (2.0, 1.0), (0.125, 8.0)]
CALLS = ("backward", "unscale", "clip_grad_norm", "clip_grad_value", "step")


class Interrupted(Exception):
    """Raised by the tests."""


def clip_both(amp, optimizer):
    amp.clip_grad_norm(optimizer, 1e6)
    amp.clip_grad_value(optimizer, 1e6)


def ctrl_c():
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("the signal was not handled")


def fail():
    raise Interrupted


@contextmanager
def python_handles_sigint():
    """Python's own handler, which a process that was started in the background lacks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupter:
    """Makes one method of the session's backend raise at its ``turn``-th call."""

    def __init__(self, amp, call, turn, after, interrupt):
        self.left, self.after, self.interrupt, self.fired = turn, after, interrupt, False
        name = "scale_loss" if call == "backward" and amp.capabilities.feature("context_form") else call
        method = getattr(amp.backend.training, name)
        if name == "scale_loss":
            self.wrapped = lambda *args: Loss(method(*args), self)
        else:
            self.wrapped = lambda *args: self.run(method, *args)
        setattr(amp.backend.training, name, self.wrapped)

    def run(self, method, *args):
        self.left -= 1
        now = self.left == 0
        self.fired = self.fired or now
        if now and not self.after:
            self.interrupt()
        outcome = method(*args)
        if now:
            self.interrupt()
        return outcome


class Loss:
    """A scaled loss whose backward pass is interrupted."""

    def __init__(self, context, interrupter):
        self.context, self.interrupter = context, interrupter

    def __enter__(self):
        self.inner = self.context.__enter__()
        return self

    def __exit__(self, *error):
        return self.context.__exit__(*error)

    def backward(self, *args):
        self.interrupter.run(self.inner.backward, *args)


def changes(run, feeds):
    """Feed the run; return what each feed changed in the weights, and whether it raised."""
    told = []
    for feed in feeds:
        before, raised = np.array(run.weights()), False
        try:
            run.feed(*feed)
        except (Interrupted, KeyboardInterrupt):
            raised = True
        told.append((np.array(run.weights()) - before, raised))
    return told


def check_changes(told, feeds):
    for (change, raised), feed in zip(told, feeds, strict=True):
        whole = -LR * np.array(feed)
        if raised and not change.any():
            continue
        np.testing.assert_allclose(change, whole, rtol=1e-6, err_msg=f"fed {feed}")


@pytest.mark.parametrize("interrupt", [fail, ctrl_c], ids=["exception", "signal"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_call_leaves_no_gradient(harness, form, call, moment, interrupt):
    run = probe_run(
        harness, form, values=(10.0, 10.0), lr=LR, clip=clip_both, loss_scale=ua.DynamicLossScale(initial_scale=1024.0)
    )
    interrupter = Interrupter(run.amp, call, 2, moment == "after", interrupt)
    with python_handles_sigint():
        told = changes(run, FEEDS)
    # A trace that is replayed runs no Python, and so nothing is interrupted.
    assert interrupter.fired or form != "eager"
    check_changes(told, FEEDS)
    assert run.amp.loss_scale == 1024.0
    assert run.amp.skipped_steps == 0


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_window_starts_anew(harness, form, call):
    """With two micro-batches per step, the second one's call fails: both are gone, and the next two are a step."""
    run = probe_run(harness, form, values=(10.0, 10.0), lr=LR, clip=clip_both, loss_scale=1024.0, accumulate_steps=2)
    turn = 4 if call == "backward" else 2
    interrupter = Interrupter(run.amp, call, turn, True, fail)
    feeds = [feed for feed in FEEDS for _ in range(2)]
    expected, pending = np.array([10.0, 10.0]), []
    for feed in feeds:
        before = np.array(run.weights())
        try:
            run.feed(*feed)
        except Interrupted:
            applied = (np.array(run.weights()) != before).any()
            expected = expected - LR * np.mean([*pending, feed], axis=0) if applied else expected
            pending = []
        else:
            pending.append(feed)
            if len(pending) == 2:
                expected = expected - LR * np.mean(pending, axis=0)
                pending = []
        np.testing.assert_allclose(run.weights(), expected, rtol=1e-6)
    assert interrupter.fired or form != "eager"


@pytest.mark.parametrize("call", ["unscale", "clip_grad_norm", "clip_grad_value"])
def test_what_an_interrupted_call_found_is_forgotten(harness, call):
    """The gradients overflow, and the call is interrupted: no step was made, so none was skipped."""
    run = probe_run(harness, values=(10.0, 10.0), lr=LR, clip=clip_both, loss_scale=ua.DynamicLossScale(1024.0))
    Interrupter(run.amp, call, 1, True, fail)
    ((change, raised),) = changes(run, [(float("inf"), 1.0)])
    assert raised
    assert not change.any()
    assert (run.amp.loss_scale, run.amp.skipped_steps, run.amp.applied_steps) == (1024.0, 0, 0)
    check_changes(changes(run, FEEDS), FEEDS)
    assert (run.amp.loss_scale, run.amp.skipped_steps, run.amp.applied_steps) == (1024.0, 0, len(FEEDS))


def test_an_interrupted_backward_of_one_loss_spares_other_optimizers(harness):
    """Each of two optimizers has a loss; the second backward pass fails: the first one's window goes on."""
    amp = session(harness, loss_scale=64.0)
    if not amp.capabilities.feature("several_optimizers"):
        pytest.skip(f"one optimizer: {amp.capabilities.feature('several_optimizers').reason}")
    models = [harness.probe([10.0]), harness.probe([10.0])]
    optimizers = [harness.sgd([model], LR) for model in models]
    *models, a, b = amp.prepare(*models, *optimizers)
    x = amp.to_native(np.ones(1, np.float32))
    amp.backward(lambda: models[0](x), a)
    Interrupter(amp, "backward", 1, True, fail)
    with pytest.raises(Interrupted):
        amp.backward(lambda: models[1](x), b)
    assert amp.step(a).applied
    amp.backward(lambda: models[1](x), b)
    assert amp.step(b).applied
    assert [harness.parameters(model)["w0"][0] for model in models] == [10.0 - LR, 10.0 - LR]


def test_a_partly_applied_update_is_refused_until_it_is_discarded(harness):
    run = probe_run(harness, values=(10.0, 10.0), lr=LR, loss_scale=1024.0)
    run.feed(*FEEDS[0])
    before = np.array(run.weights())
    context = harness.interrupted_update(run.optimizer, Interrupted())
    if context is None:
        pytest.skip("updates make new values, so none is ever applied in part")
    with context, pytest.raises(Interrupted):
        run.feed(*FEEDS[1])
    after = np.array(run.weights())
    assert after[1] == before[1]
    for _ in range(2):
        with pytest.raises(ua.StepOrderError, match=r"interrupted by Interrupted .* amp.discard_step"):
            run.feed(*FEEDS[2])
    np.testing.assert_array_equal(run.weights(), after)
    run.amp.discard_step(run.optimizer)
    check_changes(changes(run, FEEDS[2:]), FEEDS[2:])


def test_loading_a_state_ends_the_refusal(harness):
    run = probe_run(harness, values=(10.0, 10.0), lr=LR, loss_scale=1024.0)
    state = run.amp.state_dict()
    context = harness.interrupted_update(run.optimizer, Interrupted())
    if context is None:
        pytest.skip("updates make new values, so none is ever applied in part")
    with context, pytest.raises(Interrupted):
        run.feed(*FEEDS[0])
    run.amp.load_state_dict(state)
    check_changes(changes(run, FEEDS), FEEDS)


@pytest.mark.parametrize("end", ["discarded", "loaded"])
def test_what_was_forgiven_is_forgotten(harness, end):
    """The next interruption changes no parameters, and nothing is refused after it."""
    run = probe_run(harness, values=(10.0, 10.0), lr=LR, loss_scale=1024.0)
    state = run.amp.state_dict()
    context = harness.interrupted_update(run.optimizer, Interrupted())
    if context is None:
        pytest.skip("updates make new values, so none is ever applied in part")
    with context, pytest.raises(Interrupted):
        run.feed(*FEEDS[0])
    if end == "discarded":
        run.amp.discard_step(run.optimizer)
    else:
        run.amp.load_state_dict(state)

    def loss():
        raise Interrupted

    with pytest.raises(Interrupted):
        run.amp.backward(loss, run.optimizer)
    check_changes(changes(run, FEEDS), FEEDS)


class Timer:
    """A timer whose signal raises :class:`Interrupted` in the session's code: core's, or its backend's.

    A framework's own code is left alone, where an exception at any moment can end the process; so is what runs in an
    ``__exit__``, since Python lets a signal raise before its first line. There the timer rings again a moment later.
    """

    def __init__(self, amp):
        self._roots = {"unifiedamp", type(amp.backend).__module__.partition(".")[0]}
        self.rang = self._runs = False

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._ring)
        return self

    def __exit__(self, *error):
        self.stop()
        signal.signal(signal.SIGALRM, self._before)

    def start(self, seconds):
        self.rang, self._runs = False, True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def stop(self):
        self._runs = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, _, frame):
        module = frame.f_globals.get("__name__", "")
        if not self._runs:
            return  # the signal was on its way when the timer was stopped
        if module.partition(".")[0] not in self._roots or module == __name__ or leaving(frame):
            self.start(2e-5)
            return
        self.rang = True
        raise Interrupted


def leaving(frame):
    """Whether a context is being left."""
    while frame is not None and frame.f_code.co_name != "__exit__":
        frame = frame.f_back
    return frame is not None


def longest_step(run, accumulate):
    """Seconds that a window's longest step may take, once what is made or traced at first is there."""
    for _ in range(2 * accumulate):
        run.feed(0.0, 0.0)
    begun = time.perf_counter()
    for _ in range(accumulate):
        run.feed(0.0, 0.0)
    return 1.5 * (time.perf_counter() - begun) / accumulate


def interrupted_feed(run, timer, seconds, feed):
    """Feed the run, and say whether the timer rang before it was done."""
    x = run.amp.to_native(np.array(feed, np.float32))
    try:
        timer.start(seconds)
        run.step(x)
    except Exception:
        if not timer.rang:  # a framework may turn what the handler raised into something else
            raise
    finally:
        timer.stop()
    return timer.rang


# A signal that comes inside a destructor is not raised: Python reports it and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no interval timers")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_signals_at_random_moments(harness, form, accumulate):
    """A timer's signal raises anywhere in the session's code; the loop discards the step and goes on."""
    assert threading.current_thread() is threading.main_thread(), "signals reach the main thread alone"
    run = probe_run(
        harness, form, values=(0.0, 0.0), lr=LR, clip=clip_both, loss_scale=1024.0, accumulate_steps=accumulate
    )
    longest, rng = longest_step(run, accumulate), np.random.default_rng(7)
    expected, pending = np.array(run.weights()), []
    with Timer(run.amp) as timer:
        for turn in range(120):
            feed = FEEDS[turn % len(FEEDS)]
            rang = interrupted_feed(run, timer, float(rng.uniform(1e-5, longest)), feed)
            pending.append(feed)
            full = len(pending) == accumulate
            whole = expected - LR * np.mean(pending, axis=0) if full else expected
            weights = np.array(run.weights())
            if rang:
                for value, old, new in zip(weights, expected, whole, strict=True):
                    assert np.isclose(value, old, rtol=1e-5) or np.isclose(value, new, rtol=1e-5), (turn, feed)
                run.amp.discard_step(run.optimizer)
            else:
                np.testing.assert_allclose(weights, whole, rtol=1e-5, err_msg=f"turn {turn}")
            if rang or full:
                expected, pending = weights, []
    assert run.amp.loss_scale == 1024.0


def test_a_step_result_has_no_truth_value(harness):
    run = probe_run(harness, loss_scale=2.0)
    x = run.amp.to_native(np.ones(1, np.float32))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    outcome = run.amp.step(run.optimizer)
    with pytest.raises(ua.WrongObjectError, match=r"result\.applied"):
        bool(outcome)
    assert outcome.applied
