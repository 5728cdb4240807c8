"""How long work will take, as far as its rate until now tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..visible import plain
from ..workloads.tries import Shown
from .show import console

MINUTE = 60


class TimeLeft:
    """Says how much time is left.

    Args:
        total: of what is counted; may change later.
        clock: seconds, from any beginning.
    """

    def __init__(self, total: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._clock, self._begun = total, clock, clock()

    def __call__(self, done: int) -> str:
        """Return ", 40 s left" after ``done`` of all; nothing before the first and after the last."""
        if not 0 < done < self.total:
            return ""
        left = (self._clock() - self._begun) / done * (self.total - done)
        return f", {left:.0f} s left" if left < 2 * MINUTE else f", {left / MINUTE:.0f} min left"


@contextmanager
def shown_tries() -> Iterator[Shown]:
    """Yield a callback that shows the current try and the time left for the known ones."""
    left = TimeLeft()
    with console(stderr=True).status(plain("starting")) as status:

        def show(what: str, done: int, known: int) -> None:
            left.total = known
            status.update(plain(f"{what}{left(done)}"))

        yield show
