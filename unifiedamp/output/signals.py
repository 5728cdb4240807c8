"""SIGTERM ends a command as Ctrl-C does: what is finished is kept, and what is half done is cleaned up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came; handled wherever Ctrl-C is."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise :class:`Terminated` at a SIGTERM; the previous handler is restored at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of signals
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
