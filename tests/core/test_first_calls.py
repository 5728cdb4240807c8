"""What the first calls of a step take beyond usual ones: with a clock of our own, so that no test depends on time."""

from __future__ import annotations

import pytest

from unifiedamp.workloads import first_calls
from unifiedamp.workloads.first_calls import FIRST, USUAL, FirstCalls, beyond_usual


@pytest.fixture
def clock(monkeypatch):
    """``clock.takes`` are the seconds of the coming calls; reading the time costs nothing."""

    class Clock:
        now, takes, reads = 0.0, (), 0

        def perf_counter(self):
            self.reads += 1
            return self.now

        def step(self, *arguments):
            self.now += self.takes.pop(0)
            return arguments

    found = Clock()
    monkeypatch.setattr(first_calls, "time", found)
    return found


def timed(clock, takes, window=1):
    clock.takes = list(takes)
    calls = FirstCalls(clock.step, window)
    for _ in range(len(takes)):
        assert calls(1, 2) == (1, 2)
    return calls


@pytest.mark.parametrize(
    ("takes", "window", "seconds"),
    [
        ([18.0] + [0.5] * 20, 1, 17.5),
        ([18.0, 0.5, 4.0] + [0.5] * 20, 1, 21.0),
        ([18.0, 9.0] + [0.5] * 30, 2, 26.0),
        ([0.5] * 20, 1, 0.0),
        ([0.5] * FIRST + [9.0] + [0.5] * 20, 1, 0.0),
        ([18.0, 0.5, 0.5], 1, 17.5),
        ([18.0], 1, 0.0),
        ([], 1, 0.0),
    ],
)
def test_seconds_beyond_usual_calls(clock, takes, window, seconds):
    assert timed(clock, takes, window).compile_seconds() == pytest.approx(seconds)


def test_each_place_of_a_window_may_compile(clock):
    """With windows of 8 batches, the second window's calls count as first as well."""
    takes = [3.0] * 8 + [1.0] * 8 + [0.1] * 64
    assert timed(clock, takes, 8).compile_seconds() == pytest.approx(8 * 2.9 + 8 * 0.9)


def test_seconds_of_an_epoch_are_those_of_its_calls(clock):
    """What later calls say of the usual time changes nothing of the epoch before: an epoch takes longer than them."""
    clock.takes = [3.0] * 5 + [0.1] * 5
    calls, found = FirstCalls(clock.step), []
    for _ in range(2):
        before, begun = calls.timed, clock.now
        for _ in range(5):
            calls()
        found.append((clock.now - begun, calls.compile_seconds(before)))
    assert found == [(pytest.approx(15.0), 0.0), (pytest.approx(0.5), 0.0)]


def test_later_calls_are_not_timed(clock):
    timed(clock, [0.5] * (FIRST + USUAL + 100))
    assert clock.reads == 2 * (FIRST + USUAL)


def test_an_interrupted_call_is_not_counted(clock):
    def fail():
        raise KeyboardInterrupt

    calls = FirstCalls(fail)
    with pytest.raises(KeyboardInterrupt):
        calls()
    assert calls.compile_seconds() == beyond_usual([], 1) == 0.0
