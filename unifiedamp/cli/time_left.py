"""How long work will take, as far as its rate until now tells."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTE = 60


class TimeLeft:
    """Says how much time is left.

    Args:
        total: of what is counted.
        clock: seconds, from any beginning.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock, self._begun = total, clock, clock()

    def __call__(self, done: int) -> str:
        """Return ", 40 s left" after ``done`` of all; nothing before the first and after the last."""
        if not 0 < done < self._total:
            return ""
        left = (self._clock() - self._begun) / done * (self._total - done)
        return f", {left:.0f} s left" if left < 2 * MINUTE else f", {left / MINUTE:.0f} min left"
