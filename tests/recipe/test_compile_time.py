"""Compile time is no part of an epoch's samples per second; with a clock of our own: no test depends on time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unifiedamp.workloads import first_calls
from unifiedamp_examples import recipe

BATCHES, SIZE = 40, 10


@pytest.fixture
def rows(monkeypatch):
    """The rows of two epochs whose steps take 0.1 s each, but for a first of 18 s and a third of 2 s."""
    takes = [18.0, 0.1, 2.0] + [0.1] * (2 * BATCHES)
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    for module in (recipe, first_calls):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(recipe, "accuracy", lambda *_: 0.5)

    def step(x, y):
        clock.now += takes.pop(0)

    run = SimpleNamespace(
        settings=SimpleNamespace(train=SimpleNamespace(epochs=2, batch_size=SIZE, seed=0)), window=1, epoch=0, batch=0,
        amp=SimpleNamespace(to_native=lambda array: array), kit=SimpleNamespace(IMAGE_AXES=None), model=None,
        count=lambda loss: None, read_losses=lambda: None, between_windows=True, history=SimpleNamespace(epochs=[]),
    )  # fmt: skip

    def end_epoch(accuracy, rate, compiling):
        run.history.epochs.append((rate, compiling))
        run.epoch += 1

    run.end_epoch = end_epoch
    data = SimpleNamespace(batch_count=lambda *_: BATCHES, batches=lambda *_: [(0, 0)] * BATCHES)
    report = SimpleNamespace(follow=lambda batches, *_: batches, epoch=lambda row: None)
    recipe.fit(run, step, data, report)
    return run.history.epochs


def test_the_first_epoch_is_as_fast_as_the_second(rows):
    (first, compiling), (second, later) = rows
    assert first == pytest.approx(SIZE / 0.1)
    assert second == pytest.approx(SIZE / 0.1)
    assert compiling == pytest.approx(17.9 + 1.9)
    assert later == 0.0
