"""The time that a step's first calls take beyond a usual one: tracing, compiling, first allocations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

FIRST = 6
"""Windows that count as first: compilers look at the first steps, warm up, and compile again for what changed."""
USUAL = 30
"""Calls after those, of which the median is a usual call."""


class FirstCalls:
    """Calls a training step, and times its first calls.

    Args:
        step: the training step.
        window: calls per optimizer step; each place in a window may be compiled separately.
    """

    def __init__(self, step: Callable[..., Any], window: int = 1) -> None:
        self._step, self._first, self._seconds = step, FIRST * window, list[float]()

    def __call__(self, *arguments: Any) -> Any:
        """Call the step."""
        if len(self._seconds) >= self._first + USUAL:
            return self._step(*arguments)
        start = time.perf_counter()
        found = self._step(*arguments)
        self._seconds.append(time.perf_counter() - start)
        return found

    @property
    def timed(self) -> int:
        """Calls timed so far."""
        return len(self._seconds)

    def compile_seconds(self, since: int = 0) -> float:
        """Return the seconds of first calls beyond usual ones, less than the calls themselves took; of a single one, 0.

        Args:
            since: count calls from this number on, from 0.
        """
        return beyond_usual(self._seconds, self._first, since)


def beyond_usual(seconds: Sequence[float], first: int, since: int = 0) -> float:
    """Return how much longer than a usual call the first ones took, summed up.

    Args:
        seconds: of each call, in order.
        first: how many count as first; the median of the others is a usual call (of all, if there are no others).
        since: leave out the calls before this one.
    """
    if not seconds:
        return 0.0
    usual = median(seconds[first:] or seconds)
    return sum(max(0.0, each - usual) for each in seconds[since:first])
