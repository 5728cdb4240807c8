"""Ctrl-C or SIGTERM stops a run at the next safe point; a second signal stops it immediately."""

from __future__ import annotations

import signal
from types import FrameType

from ...output.signals import Terminated

ERRORS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


class Interrupt:
    """A context in which the first SIGINT or SIGTERM is only recorded; the second has its usual effect.

    Attributes:
        asked: whether a signal arrived.
        error: the exception to raise at a safe point.
    """

    asked = False
    error: type[KeyboardInterrupt] = KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in ERRORS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.asked, self.error = True, ERRORS[signal.Signals(number)]
        self.__exit__()
