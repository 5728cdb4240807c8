"""Compile time is no part of an epoch's samples per second; with a clock of our own: no test depends on time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unifiedamp.workloads import first_calls
from unifiedamp.workloads.training import loop

BATCHES, SIZE = 40, 10


@pytest.fixture
def rows(monkeypatch):
    """The rows of two epochs whose steps take 0.1 s each, but for a first of 18 s and a third of 2 s."""
    takes = [18.0, 0.1, 2.0] + [0.1] * (2 * BATCHES)
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    for module in (loop, first_calls):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(loop, "evaluate", lambda *_: {})
    monkeypatch.setattr(loop, "native", lambda _, batch: batch)
    monkeypatch.setattr(loop, "samples", lambda _: SIZE)

    def step(batch):
        clock.now += takes.pop(0)

    found, ended = [], []
    run = SimpleNamespace(window=1, amp=None, model=None, workload=None, finished=False, out_of_steps=False)
    run.windows, run.window_count = (lambda: [[0]] * BATCHES), (lambda: BATCHES)
    run.count, run.read_losses = (lambda loss: None), (lambda: None)
    run.row = lambda scores, rate, compiling: (rate, compiling)

    def end_epoch(row):
        ended.append(row)
        run.finished = len(ended) == 2

    run.end_epoch = end_epoch
    loop.fit(run, step, SimpleNamespace(follow=lambda windows, *_: windows, epoch=found.append))
    return found


def test_the_first_epoch_is_as_fast_as_the_second(rows):
    (first, compiling), (second, later) = rows
    assert first == pytest.approx(SIZE / 0.1)
    assert second == pytest.approx(SIZE / 0.1)
    assert compiling == pytest.approx(17.9 + 1.9)
    assert later == 0.0
