"""Ctrl-C asks a run to stop at a good place; pressed again, it stops at once."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupt:
    """A context in which SIGINT only sets ``asked``; a second one raises KeyboardInterrupt as ever."""

    asked = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self._before)
