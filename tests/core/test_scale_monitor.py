"""When the loss scale is polled, and what observers hear."""

from types import SimpleNamespace

import pytest

import unifiedamp as ua
from unifiedamp.backend import NonFiniteReport, Unsupported
from unifiedamp.loss_scale import ScaleState, StaticLossScale
from unifiedamp.training.scale_monitor import POLL_INTERVAL, ScaleMonitor


class Backend:
    """Both roles that the monitor asks; its state may be read, and polled or not."""

    def __init__(self, free=True, arrives=True):
        self.training = self.device = self
        self.distributed = Unsupported("one rank")
        self.reads_without_sync, self.arrives = free, arrives
        self.collects = self.keeps = False
        self.state, self.read, self.polled = ScaleState(4.0), 0, 0

    def read_state(self):
        self.read += 1
        return self.state

    def poll_state(self):
        self.polled += 1
        return self.state if self.arrives else None

    def collect_nonfinite_report(self, enabled):
        self.collects = enabled

    def keep_skip_report(self, enabled):
        self.keeps = enabled

    def nonfinite_report(self):
        return NonFiniteReport(("w",), None)


class Hooks(SimpleNamespace):
    """Writes down what is called."""

    def __init__(self):
        super().__init__(heard=[])

    def __getattr__(self, name):
        return lambda **_: self.heard.append(name)


def monitor(backend, skips=3):
    return ScaleMonitor(backend, StaticLossScale(4.0, max_consecutive_skips=skips))


def test_where_reading_synchronizes_polls_are_rare():
    backend = Backend(free=False)
    monitored = monitor(backend)
    for _ in range(3 * POLL_INTERVAL):
        monitored.after_step()
    assert (backend.polled, backend.read, monitored.steps) == (3, 0, 3 * POLL_INTERVAL)


def test_a_poll_without_values_is_not_repeated_at_once():
    backend = Backend(free=False, arrives=False)
    monitored = monitor(backend)
    for _ in range(3 * POLL_INTERVAL):
        monitored.after_step()
    assert backend.polled == 3


def test_observers_hear_each_step():
    backend, hooks = Backend(free=False), Hooks()
    monitored = monitor(backend)
    monitored.hooks = hooks
    monitored.expect(backend.state)
    assert backend.keeps
    assert not backend.collects
    monitored.after_step()
    for scale, skipped in ((8.0, 0), (4.0, 1), (4.0, 2), (4.0, 2)):
        backend.state = ScaleState(scale, skipped_steps=skipped)
        monitored.after_step()
    assert hooks.heard == ["on_scale_changed", "on_step_skipped", "on_scale_changed", "on_step_skipped"]
    assert (backend.polled, backend.read) == (0, 5)


def test_the_limit_is_met_exactly():
    backend, hooks = Backend(), Hooks()
    monitored = monitor(backend)
    monitored.hooks = hooks
    monitored.expect(backend.state)
    for bad in (1, 2):
        backend.state = ScaleState(4.0, bad_steps=bad, skipped_steps=bad)
        monitored.after_step()
    assert backend.collects
    backend.state = ScaleState(4.0, bad_steps=3, skipped_steps=3)
    with pytest.raises(ua.LossScaleExhausted, match="3 steps in a row"):
        monitored.after_step()
    assert hooks.heard == ["on_step_skipped"] * 3 + ["on_scale_exhausted"]


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(("loaded", "limit"), [(None, 1), (ScaleState(4.0), 1), (ScaleState(4.0, bad_steps=2), 3)])
def test_one_skip_short_of_the_limit_the_next_one_meets_it(free, loaded, limit):
    """From the first step on, and after a state that was loaded."""
    backend = Backend(free)
    monitored = monitor(backend, limit)
    monitored.expect(loaded)
    assert backend.collects
    backend.state = ScaleState(4.0, bad_steps=limit, skipped_steps=limit)
    with pytest.raises(ua.LossScaleExhausted, match="steps? in a row"):
        monitored.after_step()


def test_wanting_skip_reports_reaches_the_backend():
    for free in (True, False):
        backend = Backend(free)
        monitored = monitor(backend)
        for wanted in (True, False):
            monitored.wants_skip_report = wanted
            assert (backend.keeps, backend.collects) == (wanted, wanted and free)


def test_polls_become_rare_where_a_compiled_step_makes_reading_synchronize():
    backend = Backend(free=True)
    monitored = monitor(backend)
    monitored.after_step()
    backend.reads_without_sync = False
    for _ in range(2 * POLL_INTERVAL + 1):
        monitored.after_step()
    assert backend.polled == 4  # after two steps, then once per interval
