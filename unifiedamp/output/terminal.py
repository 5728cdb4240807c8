"""Text that others wrote (file names, layer names, lines of code), made safe to print on a terminal."""

from __future__ import annotations

from rich import markup

from ..visible import HIDDEN, visible

__all__ = ["HIDDEN", "plain", "visible"]


def plain(text: object) -> str:
    """Return :func:`visible` text for a place where rich reads markup (a table, a progress bar): it holds none."""
    return markup.escape(visible(text))
