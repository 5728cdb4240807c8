"""Progress of commands that find out while they run how many tries they need."""

from __future__ import annotations

from collections.abc import Callable

Shown = Callable[[str, int, int], None]
"""Called with a description, the number of finished tries, and the number of tries known so far."""


class Tries:
    """Reports each try as it starts.

    Args:
        show: see :data:`Shown`.
    """

    def __init__(self, show: Shown) -> None:
        self._show = show
        self._begun = self._known = 0

    def expect(self, count: int) -> None:
        """Add to the number of known tries; a negative ``count`` removes some."""
        self._known += count

    def begin(self, what: str) -> None:
        """Start the next try and report it."""
        self._begun += 1
        self.within(what)

    def within(self, what: str) -> None:
        """Report a part of the current try."""
        self._show(what, self._begun - 1, self._known)
