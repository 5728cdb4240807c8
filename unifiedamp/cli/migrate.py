"""``unifiedamp migrate``: code written for the frameworks' own AMP calls, and for Apex, in this package's calls."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..errors import AmpError, UnsupportedError
from .errors import NOT_ALL_WELL, USER_ERROR
from .show import complain, console, print_json, say

if TYPE_CHECKING:
    from ..migrate.report import Migration

STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}


def migrate(
    files: Annotated[list[Path], typer.Argument(help="Python files; of a folder, all in it.")],
    write: Annotated[bool, typer.Option("--write", help="Write the files; without it nothing is changed.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if there is anything to migrate.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the diff.")] = False,
) -> None:
    """Rewrite code written for Apex amp, torch.amp, Keras mixed precision or mxnet.amp to unifiedamp; show the diff.

    Example: unifiedamp migrate train.py

    What it does not understand is left as it is, and listed with its line and what to write by hand.

    Exit code 0: done, also where lines are left to you; 1: with --check, there is something to migrate or to do by
    hand; 2: a file cannot be read, written, or is no Python (the others are done all the same).
    """
    done, errors = _migrate_all(files, write)
    if json:
        print_json({"files": [one.to_dict() | {"written": write and one.changed} for one in done], "errors": errors})
    else:
        _show(done, write)
    for line in errors:
        complain(line)
    if errors:
        raise typer.Exit(USER_ERROR)
    if check and any(one.changed or one.findings for one in done):
        raise typer.Exit(NOT_ALL_WELL)


def _migrate_all(files: list[Path], write: bool) -> tuple[list[Migration], list[str]]:
    if importlib.util.find_spec("libcst") is None:
        raise UnsupportedError("migrate needs libcst: pip install libcst")
    from ..migrate import files as on_disk

    done: list[Migration] = []
    errors: list[str] = []
    for path in dict.fromkeys(each for file in files for each in _python(file)):
        try:
            migration = on_disk.migrate_file(path)
            if write and migration.changed:
                on_disk.write(migration)
            done.append(migration)
        except AmpError as error:
            errors.append(" ".join(str(error).split()))
    return done, errors


def _python(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*.py") if each.is_file()) if path.is_dir() else [path]


def _show(done: list[Migration], written: bool) -> None:
    out = console()
    for one in done:
        if one.changed:
            _show_diff(out, one.diff())
    for one in done:
        doing = "written" if written and one.changed else one.status
        say(out, f"{one.path}: {doing}{' (' + ', '.join(one.apis) + ')' if one.apis else ''}")
        for found in one.findings:
            say(out, f"{one.path}:{found.line}: {found.what}: {found.write}")
            if found.blocks:
                say(out, f"{one.path}:{found.line}: because of it, this API's other calls are left as they are too")
    if any(one.changed for one in done) and not written:
        say(out, "Nothing was changed; --write changes the files.")


def _show_diff(out: Console, diff: str) -> None:
    for line in diff.splitlines():
        style = next((style for start, style in STYLES.items() if line.startswith(start)), "")
        say(out, line, style)
