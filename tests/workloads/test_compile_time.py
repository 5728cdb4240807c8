"""Compile time is no part of an epoch's samples per second; with a clock of our own: no test depends on time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from unifiedamp.backend import Ranks
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
    found = []

    def step(batch, factor):
        clock.now += takes.pop(0)

    class Run(SimpleNamespace):
        finished = property(lambda self: len(found) == 2)

    run = Run(
        window=1, amp=SimpleNamespace(to_native=lambda array: array), model=None, workload=None, out_of_steps=False,
        count=lambda loss: None, read_losses=lambda: None, window_count=lambda: BATCHES,
        windows=lambda: [[np.zeros((SIZE, 1))]] * BATCHES, row=lambda scores, rate, compiling: (rate, compiling),
        end_epoch=found.append, ranks=Ranks(), epoch=0,
    )  # fmt: skip
    loop.fit(run, step, SimpleNamespace(follow=lambda windows, *_: windows, epoch=lambda row: None))
    return found


def test_the_first_epoch_is_as_fast_as_the_second(rows):
    (first, compiling), (second, later) = rows
    assert first == pytest.approx(SIZE / 0.1)
    assert second == pytest.approx(SIZE / 0.1)
    assert compiling == pytest.approx(17.9 + 1.9)
    assert later == 0.0
