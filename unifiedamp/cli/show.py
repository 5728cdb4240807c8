"""How commands show their results: as a table for people, or as JSON for machines.

Everything printed here goes through ``visible``: a file's name or a line of code cannot steer the terminal.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import textwrap
from typing import Any

from rich.console import Console
from rich.text import Text

from ..visible import visible
from . import streams
from .tables import FoldingTable as table

WRAPPED = functools.partial(
    textwrap.wrap, break_long_words=False, break_on_hyphens=False, expand_tabs=False, replace_whitespace=False
)
__all__ = ["complain", "console", "finite", "print_json", "say", "table"]


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; output that goes elsewhere is not wrapped at 80 columns."""
    quiet = stderr and streams.is_quiet()  # progress goes there, and what is wrong is printed without a console
    made = Console(highlight=False, emoji=False, stderr=stderr, quiet=quiet)
    return made if made.is_terminal else Console(highlight=False, emoji=False, stderr=stderr, quiet=quiet, width=190)


def print_json(value: Any) -> None:
    """Print plain values as JSON, and nothing else, on standard output."""
    # Of all control characters, JSON lets 7f stand as it is.
    text = json.dumps(finite(value), indent=1, allow_nan=False).replace("\x7f", "\\u007f")
    print(text, file=streams.results(), flush=True)


def finite(value: Any) -> Any:
    """Return plain values in which infinities and nan are text ("inf"), since JSON has no numbers for them."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def say(out: Console, text: str, style: str = "", *, wrap: bool = True) -> None:
    """Print a line as it is: brackets in it are no markup.

    On a terminal it is broken at spaces, and nowhere else; with ``wrap=False`` (code), not even there.
    """
    shown = visible(text)
    wraps = wrap and out.is_terminal and len(shown) > out.width
    for line in WRAPPED(shown, out.width) if wraps else [shown]:
        out.print(Text(line, style=style), soft_wrap=True)


def complain(text: str) -> None:
    """Print one line about what is wrong on standard error."""
    print(f"unifiedamp: {visible(text)}", file=sys.stderr)
