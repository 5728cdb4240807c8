"""How commands show their results: as a table for people, or as JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; output that goes elsewhere is not wrapped at 80 columns."""
    made = Console(highlight=False, stderr=stderr)
    return made if made.is_terminal else Console(highlight=False, stderr=stderr, width=190)


def print_json(value: Any) -> None:
    """Print plain values as JSON, and nothing else, on standard output."""
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    print()


def say(out: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: brackets in it are no markup, and it is not wrapped."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> Table:
    """Return a table.

    Args:
        title: stands above it.
        columns: the headings.
        rows: cells, as text.
        right: the columns of numbers.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in set(right) else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made
