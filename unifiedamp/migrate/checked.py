"""An API's migrated text, checked before it is offered: what fails is refused, with the lines of the file as it was."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from types import ModuleType

from .edits import Edits
from .imports import tidy
from .report import Finding
from .source import Source

Check = Callable[[Source, str], Sequence[tuple[int, str]]]
WRITE = "the migrated file would go wrong there: change it by hand"


def refusals(
    path: str, api: ModuleType, check: Check, source: Source, edits: Edits, ua: str, *, indented: bool = False
) -> list[Finding]:
    """Return why an API's changes are refused.

    Args:
        path: what messages call the file.
        api: the API's package.
        check: returns (line, reason) for each thing that would go wrong in the migrated file, which has this API's
            changes and imports alone.
        source: the file as it was.
        edits: the API's changes; imports are not among them yet.
        ua: what the migrated code calls this package.
        indented: see :func:`old_lines`.
    """
    mine = Edits()
    mine.merge(edits)
    tidy(source, mine, api.OLD_IMPORTS, ua, getattr(api, "NEEDS", ()))
    after = mine.apply(source.module).bytes
    found = check(Source(after), path)
    lines = old_lines(source.text, after, indented=indented) if found else {}
    return [Finding(lines.get(line, 1), reason, WRITE, blocks=True) for line, reason in dict.fromkeys(found)]


def old_lines(before: bytes, after: bytes, *, indented: bool = False) -> dict[int, int]:
    """Return line of the result → line of the old text that became it, or that it stands beside; from 1.

    Args:
        before: the old text.
        after: the result.
        indented: a line that stands deeper in the result, as in a region, is the same line.
    """
    old, new = ([line.strip() if indented else line for line in text.splitlines()] for text in (before, after))
    lines: dict[int, int] = {}
    for _, start, end, first, last in difflib.SequenceMatcher(None, old, new, autojunk=True).get_opcodes():
        for offset in range(last - first):
            lines[first + offset + 1] = max(1, min(start + offset + 1, end or 1))
    return lines
