"""Text that others wrote, with each character that a terminal or a browser obeys instead of showing written out."""

from __future__ import annotations

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that a terminal obeys instead of showing: control characters, marks of direction and width,
halves of surrogate pairs, separators of lines and paragraphs."""


def visible(text: object, keep: str = "\t") -> str:
    r"""Return text in which each character that would steer a terminal is written as its escape, such as ``\x1b``.

    Args:
        text: anything; its ``str`` is taken.
        keep: characters that stay as they are.
    """
    return "".join(one if one in keep or _shows(one) else _escaped(one) for one in str(text))


def plain(text: object) -> str:
    """Return :func:`visible` text for a place where rich reads markup (a table, a progress bar): it holds none."""
    from rich import markup

    return markup.escape(visible(text))


def _shows(one: str) -> bool:
    return one.isprintable() or unicodedata.category(one) not in HIDDEN


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
