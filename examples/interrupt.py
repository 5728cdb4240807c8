"""Ctrl-C or SIGTERM asks a run to stop at a good place; a second one stops it at once."""

from __future__ import annotations

import signal
from types import FrameType

from unifiedamp.output.signals import Terminated

ERRORS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


class Interrupt:
    """A context in which a first SIGINT or SIGTERM is only noted; another one has its usual effect.

    Attributes:
        asked: whether a signal has come.
        error: what to raise at a good place, once it has.
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
