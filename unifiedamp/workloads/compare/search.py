"""The largest number that fits: doubling, then bisection."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], start: int, cap: int, grain: int = 1) -> int:
    """Return the largest number up to ``cap`` that fits, to within ``grain``; 0 when not even 1 does.

    What is returned was tried and fits. If it is below ``cap``, something at most ``grain`` above it was tried and does
    not.

    Args:
        fits: whether a number fits; once one does not, no larger one may.
        start: the first number to try, at least 1.
        cap: the largest to try, at least 1.
        grain: how close is close enough, at least 1.
    """
    low, high, size = 0, cap + 1, min(start, cap)
    while low < cap and high == cap + 1:  # doubling, until something does not fit
        if not fits(size):
            high = size
        else:
            low, size = size, min(size * 2, cap)
    while low < cap and high - low > (grain if low else 1):  # bisection; rather a small one than none
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
