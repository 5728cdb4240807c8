"""When the loss scale is looked at, and what is told of it."""

from types import SimpleNamespace

import pytest
from unifiedamp.watch import LOOK_EVERY, Watch

import unifiedamp as ua
from unifiedamp.backend import NonFiniteReport
from unifiedamp.loss_scale import ScaleState, StaticLossScale


class Watched:
    """A backend with a state that may be read, and peeked at or not."""

    def __init__(self, free=True, arrives=True):
        self.looking_is_free, self.arrives = free, arrives
        self.diagnosing = self.remembers_skips = False
        self.state, self.read, self.peeked = ScaleState(4.0), 0, 0

    def read_state(self):
        self.read += 1
        return self.state

    def peek_state(self):
        self.peeked += 1
        return self.state if self.arrives else None

    def non_finite_report(self):
        return NonFiniteReport(("w",), None)


class Hooks(SimpleNamespace):
    """Writes down what is called."""

    def __init__(self):
        super().__init__(heard=[])

    def __getattr__(self, name):
        return lambda **_: self.heard.append(name)


def watch(backend, skips=3):
    return Watch(backend, StaticLossScale(4.0, max_consecutive_skips=skips))


def test_where_looking_waits_it_is_done_seldom():
    backend = Watched(free=False)
    watching = watch(backend)
    for _ in range(3 * LOOK_EVERY):
        watching.after_step()
    assert (backend.peeked, backend.read, watching.steps) == (3, 0, 3 * LOOK_EVERY)


def test_a_look_that_has_not_arrived_is_not_repeated_at_once():
    backend = Watched(free=False, arrives=False)
    watching = watch(backend)
    for _ in range(3 * LOOK_EVERY):
        watching.after_step()
    assert backend.peeked == 3


def test_observers_hear_each_step():
    backend, hooks = Watched(free=False), Hooks()
    watching = watch(backend)
    watching.hooks = hooks
    watching.expect(backend.state)
    assert backend.remembers_skips
    assert not backend.diagnosing
    watching.after_step()
    for scale, skipped in ((8.0, 0), (4.0, 1), (4.0, 2), (4.0, 2)):
        backend.state = ScaleState(scale, skipped_steps=skipped)
        watching.after_step()
    assert hooks.heard == ["on_scale_changed", "on_step_skipped", "on_scale_changed", "on_step_skipped"]
    assert (backend.peeked, backend.read) == (0, 5)


def test_the_limit_is_met_exactly_and_told():
    backend, hooks = Watched(), Hooks()
    watching = watch(backend)
    watching.hooks = hooks
    watching.expect(backend.state)
    for bad in (1, 2):
        backend.state = ScaleState(4.0, bad_steps=bad, skipped_steps=bad)
        watching.after_step()
    assert backend.diagnosing
    backend.state = ScaleState(4.0, bad_steps=3, skipped_steps=3)
    with pytest.raises(ua.LossScaleExhausted, match="3 steps in a row"):
        watching.after_step()
    assert hooks.heard == ["on_step_skipped"] * 3 + ["on_scale_exhausted"]


def test_curiosity_is_passed_on_and_taken_back():
    for free in (True, False):
        backend = Watched(free)
        watching = watch(backend)
        for wanted in (True, False):
            watching.curious = wanted
            assert (backend.remembers_skips, backend.diagnosing) == (wanted, wanted and free)
