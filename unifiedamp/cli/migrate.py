"""``unifiedamp migrate``: rewrites code that uses the frameworks' own AMP, or Apex, to use this package."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..errors import UnsupportedError
from .errors import NOT_ALL_WELL, USER_ERROR
from .show import complain, console, print_json, say

if TYPE_CHECKING:
    from ..migrate.batch import Batch

STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}


class To(StrEnum):
    """What old calls become."""

    amp = "amp"
    compat = "compat"


def migrate(
    files: Annotated[list[Path], typer.Argument(help="Python files, notebooks, or folders of them.")],
    write: Annotated[bool, typer.Option("--write", help="Write the files instead of only showing the diff.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if anything would change or was refused.")
    ] = False,
    to: Annotated[
        To, typer.Option("--to", help="amp: rewrite to session calls; compat: old calls, from unifiedamp.compat.")
    ] = To.amp,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the diff.")] = False,
) -> None:
    """Rewrite code written for Apex amp, torch.amp, Keras mixed precision or mxnet.amp to unifiedamp; show the diff.

    Example: unifiedamp migrate train.py

    Code that cannot be migrated is left unchanged and listed by line, with what to write by hand. In a folder, files
    that share a session are written together, or not at all if one of them is refused.

    Exit code 0: done, even if lines are left to you; 1: with --check, something would change or is left to you; 2: a
    file cannot be read or written, or is not Python (the other files are still migrated).
    """
    if importlib.util.find_spec("libcst") is None:
        raise UnsupportedError("migrate needs libcst: pip install libcst")
    from ..migrate.batch import Batch
    from ..migrate.report import NOTHING, WORKS

    batches = [Batch(path, to.value) for path in dict.fromkeys(files)]
    if write:
        for batch in batches:
            batch.write()
    errors = [line for batch in batches for line in batch.errors]
    if json:
        print_json({"files": [each for batch in batches for each in batch.to_dicts()], "errors": errors})
    else:
        _show(batches, write)
    for line in errors:
        complain(line)
    if errors:
        raise typer.Exit(USER_ERROR)
    if check and any(one.status not in (NOTHING, WORKS) for batch in batches for one in batch.done):
        raise typer.Exit(NOT_ALL_WELL)


def _show(batches: list[Batch], written: bool) -> None:
    out = console()
    for batch in batches:
        for one in batch.done:
            if one.changed:
                _show_diff(out, one.diff())
    for batch in batches:
        for line in batch.lines():
            say(out, line)
    if not written and any(one.changed for batch in batches for one in batch.done):
        say(out, "Nothing was changed; --write changes the files.")


def _show_diff(out: Console, diff: str) -> None:
    for line in diff.splitlines():
        style = next((style for start, style in STYLES.items() if line.startswith(start)), "")
        say(out, line, style, wrap=False)
