"""Ctrl-C or SIGTERM stops a run at the next safe point; a second signal stops it immediately."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ...output.signals import Terminated

ERRORS: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
"""Signal → the exception to raise at a safe point."""


class Interrupt:
    """A context in which the first SIGINT or SIGTERM is only recorded; the second has its usual effect.

    Python handles signals in the main thread alone: in another one, nothing is recorded.

    Args:
        launched: a launcher started the process: after Ctrl-C, which reaches both, it sends SIGTERM too; that is no
            second signal, and it kills what does not end.

    Attributes:
        asked: the number of the signal that arrived; 0 for none.
    """

    asked = 0

    def __init__(self, launched: bool = False) -> None:
        self._launched = launched
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._before = {number: signal.signal(number, self._note) for number in ERRORS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.asked = self.asked or number
        if not self._launched:
            self.__exit__()
