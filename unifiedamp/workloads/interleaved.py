"""Timing several runs interleaved, so that a slowdown of the machine affects all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ..errors import AmpError

K = TypeVar("K", bound=Hashable)
LEAST_ROUNDS = 2


@dataclass(frozen=True)
class Ratio:
    """How many times faster one thing is than another.

    Attributes:
        value: the median over the rounds; above 1 is faster.
        low, high: the smallest and largest ratio of any round.
    """

    value: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        """Whether every round says the same: faster in all, or slower in all."""
        return self.low > 1 or self.high < 1


def interleave(
    runs: Mapping[K, Callable[[], float]],
    rounds: int,
    failed: Callable[[K, AmpError], None] | None = None,
    seconds: float = math.inf,
    rotated: bool = False,
) -> dict[K, list[float]]:
    """Run each run once per round, in changing order, and return their results.

    Args:
        runs: by key; each returns a rate or a time.
        rounds: how many, at most.
        failed: called with a run that raised an ``AmpError``, which is then left out; None raises the error.
        seconds: no further round begins after this time, once there are ``LEAST_ROUNDS``.
        rotated: rotate the order by one from round to round, instead of reversing it.
    """
    found: dict[K, list[float]] = {key: [] for key in runs}
    begun = time.perf_counter()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - begun > seconds:
            break
        for key in _order(list(found), number, rotated):
            try:
                found[key].append(runs[key]())
            except AmpError as error:
                if failed is None:
                    raise
                del found[key]
                failed(key, error)
    return found


def _order(keys: list[K], number: int, rotated: bool) -> list[K]:
    if rotated:
        first = number % len(keys) if keys else 0
        return keys[first:] + keys[:first]
    return keys if number % 2 == 0 else keys[::-1]


def ratio(rates: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Return the ratio of two rates measured in the same rounds."""
    each = [mine / theirs for mine, theirs in zip(rates, baseline, strict=True)]
    return Ratio(median(each), min(each), max(each))
