"""The searches of ``unifiedamp tune``, without anything that is searched in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimize_subset(items: Sequence[T], good: Callable[[list[T]], bool]) -> list[T] | None:
    """Return a selection that is good and from which nothing can be left out; None when not even all are good.

    Halves are tried first, then smaller and smaller parts, so that few of many are found by few questions.

    Args:
        items: what to choose from.
        good: whether a selection will do; adding to a good one must not make it bad.
    """
    if good([]):
        return []
    kept = list(items)
    if not kept or not good(kept):
        return None
    part = max(1, len(kept) // 2)
    while True:
        start = 0
        while start < len(kept):
            without = kept[:start] + kept[start + part :]
            if without and good(without):
                kept = without
            else:
                start += part
        if part == 1:
            return kept
        part //= 2


def largest_clean(skips: Callable[[float], int], start: float, least: float = 1.0) -> float:
    """Return the largest of ``start``, ``start / 2``, … down to ``least`` with which no step is skipped.

    Args:
        skips: how many of the first steps are skipped from a scale on.
        start: the first scale to try.
        least: what is returned untried when all above it skip.
    """
    scale = start
    while scale > least and skips(scale):
        scale /= 2
    return max(scale, least)
