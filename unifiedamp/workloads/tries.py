"""How far a command is that tries one thing after another, and learns on its way how many there are."""

from __future__ import annotations

from collections.abc import Callable

Shown = Callable[[str, int, int], None]
"""Takes what begins, how many tries are done, and how many are known of."""


class Tries:
    """Shows each try as it begins.

    Args:
        show: shows one.
    """

    def __init__(self, show: Shown) -> None:
        self._show = show
        self._begun = self._known = 0

    def expect(self, count: int) -> None:
        """Note that there are more tries than were known of, or fewer where ``count`` is negative."""
        self._known += count

    def begin(self, what: str) -> None:
        """Show the next try."""
        self._begun += 1
        self.within(what)

    def within(self, what: str) -> None:
        """Show a part of the present try."""
        self._show(what, self._begun - 1, self._known)
