"""Process-wide settings of a framework, set while a session needs them and restored afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any


class Switch:
    """One setting; a context that may be entered again while it is entered, and by several threads.

    The first to enter saves the present value and sets the wanted one; the last to leave restores the saved value.

    Args:
        read: returns the setting as it is.
        write: sets it.
        wanted: what it is set to inside.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object], wanted: Any) -> None:
        self._read, self._write, self._wanted = read, write, wanted
        self._lock = threading.Lock()
        self._inside = 0
        self._found: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._found = self._read()
                self._write(self._wanted)
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._write(self._found)


class Switches:
    """Several of them as one context, to be entered around whatever a session computes.

    Args:
        switches: in the order in which they are set.
    """

    def __init__(self, switches: Sequence[Switch] = ()) -> None:
        self._switches = tuple(switches)

    def __bool__(self) -> bool:
        return bool(self._switches)

    def __enter__(self) -> None:
        if not self._switches:
            return
        with ExitStack() as stack:
            for switch in self._switches:
                stack.enter_context(switch)
            stack.pop_all()

    def __exit__(self, *exception: object) -> None:
        if not self._switches:
            return
        with ExitStack() as stack:
            for switch in self._switches:
                stack.push(switch)
