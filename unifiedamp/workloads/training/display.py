"""What a run shows its progress to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .run import Run


class Watcher(Protocol):
    """What a run shows its progress to."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch has ended."""

    def follow(self, windows: Iterable[list[Any]], run: Run, count: int | None) -> Iterator[list[Any]]:
        """Yield ``windows``, of which the epoch has ``count`` (None: not known)."""


class Display(Watcher, Protocol):
    """What a command shows a run with."""

    def begin(self, run: Run) -> None:
        """A run begins, or goes on."""

    def end(self, run: Run) -> None:
        """It has ended, whichever way."""


class Silent:
    """The display of a process whose run another one shows."""

    def begin(self, run: Run) -> None:
        """Show nothing."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Show nothing."""

    def follow(self, windows: Iterable[list[Any]], run: Run, count: int | None) -> Iterator[list[Any]]:
        """Yield ``windows``."""
        yield from windows

    def end(self, run: Run) -> None:
        """Show nothing."""
