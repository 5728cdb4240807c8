"""Measuring several things in turns, so that whatever slows the machine down for a while hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ..errors import AmpError

K = TypeVar("K", bound=Hashable)


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


def in_turns(
    turns: Mapping[K, Callable[[], float]], rounds: int, failed: Callable[[K, AmpError], None]
) -> dict[K, list[float]]:
    """Run each turn once per round, every other round backwards, and return what they gave.

    Args:
        turns: what to run, by key; each returns a rate (samples or steps per second).
        rounds: how often.
        failed: told of a turn that raised an ``AmpError``; it is left out from then on, and from the answer.
    """
    found: dict[K, list[float]] = {key: [] for key in turns}
    for number in range(rounds):
        for key in list(found) if number % 2 == 0 else list(reversed(found)):
            try:
                found[key].append(turns[key]())
            except AmpError as error:
                del found[key]
                failed(key, error)
    return found


def ratio(rates: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Return the ratio of two rates measured in the same rounds."""
    each = [mine / theirs for mine, theirs in zip(rates, baseline, strict=True)]
    return Ratio(median(each), min(each), max(each))
