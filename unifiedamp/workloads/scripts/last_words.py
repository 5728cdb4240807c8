"""What a script said before it ended."""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL = 20_000
"""Bytes of the standard error's end that are read."""
LONGEST = 300
ERROR = re.compile(r"^(\[\w+\]:\s*)?([A-Za-z_][\w.]*\.)?[A-Z]\w*(Error|Exception|Exhausted|Interrupt|Exit|Warning)\b")
"""The line at the end of a traceback; a launcher may say more after it, and put a rank before it."""


def last_words(stderr: Path) -> str:
    """Return the last error that a script printed, or else its last line; empty where it printed nothing."""
    try:
        with stderr.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if ERROR.match(line) and "Warning" not in line.partition(":")[0]]
    found = errors or lines
    return found[-1][:LONGEST] if found else ""
