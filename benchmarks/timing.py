"""Alternating timing of loops, and the comparison of two loops.

A turn is several steps, long enough that clock resolution and cold caches after the other loop's turn do not matter. A
pair is one turn of each loop, in alternating order. The result is the median of the pairs' ratios: temporary load on
the machine slows both turns of a pair.
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from record import RESULTS, hardware, show, write, write_race

from unifiedamp.workloads.interleaved import LEAST_ROUNDS, interleave

__all__ = [
    "LEAST_ROUNDS",
    "RESULTS",
    "Comparison",
    "Loop",
    "Timed",
    "bootstrap",
    "compare",
    "hardware",
    "in_rounds",
    "say",
    "show",
    "write",
    "write_race",
]

TURN_SECONDS = 0.01
"""Length of a turn on a CPU."""
GPU_TURN_SECONDS = 0.1
"""Length of a turn on a GPU, which ends with one synchronization."""
WARM_UP = 12

_begun = time.perf_counter()


def say(text: str) -> None:
    """Print progress with the elapsed time."""
    print(f"[{time.perf_counter() - _begun:6.1f} s] {text}", flush=True)


class Timed(Protocol):
    """A loop that runs turns: a :class:`Loop`, or one in another process."""

    def turn(self, steps: int) -> float:
        """Run ``steps`` steps; return the seconds per step."""


@dataclass
class Loop:
    """A training loop of this process.

    Attributes:
        step: runs one training step on a fixed batch.
        finish: synchronizes with the device.
        around: context of each turn, entered and left outside the timing (for process-wide patches of one side).
    """

    step: Callable[[], Any]
    finish: Callable[[], Any]
    around: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)

    def turn(self, steps: int) -> float:
        """Run ``steps`` steps; return the seconds per step."""
        step = self.step
        with self.around():
            start = time.perf_counter()
            for _ in range(steps):
                step()
            self.finish()
            return (time.perf_counter() - start) / steps


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: median milliseconds per step of both sides, and the ratio first / second.

    Attributes:
        labels: column → label of this row.
        ratio: median of the pairs' ratios; ``low`` and ``high`` bound it with 95 % confidence (bootstrap).
    """

    labels: Mapping[str, str]
    first_ms: float
    second_ms: float
    ratio: float
    low: float
    high: float
    pairs: int
    steps_per_turn: int


def compare(
    labels: Mapping[str, str],
    first: Loop,
    second: Loop,
    pairs: int,
    seconds: float = math.inf,
    turn_seconds: float | None = None,
) -> Comparison:
    """Time two loops alternately, after warming up (and so compiling) both.

    Args:
        labels: labels of the row.
        first: the loop to measure.
        second: the reference.
        pairs: number of pairs of turns.
        seconds: time limit; no pair starts after it.
        turn_seconds: length of a turn; None is ``TURN_SECONDS``.
    """
    for loop in (first, second):
        loop.turn(WARM_UP)
    slower = max(loop.turn(3) for loop in (first, second))
    steps = steps_for(slower, turn_seconds or TURN_SECONDS)
    times = in_rounds((first, second), (steps, steps), pairs, seconds)
    ratio, low, high = ratio_of(times[:, 0], times[:, 1])
    first_ms, second_ms = (float(value) for value in np.median(times, axis=0) * 1e3)
    return Comparison(labels, first_ms, second_ms, ratio, low, high, len(times), steps)


def steps_for(seconds: float, turn_seconds: float) -> int:
    """Return the number of steps in a turn of ``turn_seconds``, for steps of ``seconds``."""
    return max(1, round(turn_seconds / seconds))


def in_rounds(loops: Sequence[Timed], steps: Sequence[int], rounds: int, seconds: float = math.inf) -> Any:
    """Run rounds of one turn of each loop, the order rotated by one from round to round.

    Args:
        loops: warm loops.
        steps: number of steps in a turn, per loop.
        rounds: maximum number of rounds.
        seconds: time limit; no round starts after it, once there are ``LEAST_ROUNDS``.

    Returns:
        Seconds per step, shape (rounds, loops).
    """
    runs = {index: functools.partial(loop.turn, steps[index]) for index, loop in enumerate(loops)}
    gc.collect()
    gc.disable()
    try:
        times = interleave(runs, rounds, seconds=seconds, rotated=True)
    finally:
        gc.enable()
    return np.array([times[index] for index in runs]).T


def ratio_of(first: Any, second: Any) -> tuple[float, float, float]:
    """Return the median of the rounds' ratios, and its 95 % interval."""
    ratios = np.asarray(first) / np.asarray(second)
    return (float(np.median(ratios)), *bootstrap(ratios))


def bootstrap(values: Any, rounds: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of the median of ``values``."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, (rounds, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)
