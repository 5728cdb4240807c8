"""Working out one API's changes to a file, or to files that are read as one, and checking that the result parses."""

from __future__ import annotations

import ast
import warnings
from types import ModuleType

import libcst as cst

from ..errors import ConfigError
from .edits import Edits
from .report import CannotMigrate, Finding
from .source import Source
from .work import Names, Work

UNREADABLE = (cst.ParserSyntaxError, UnicodeError, LookupError, ValueError, SyntaxError)


def plan(api: ModuleType, source: Source) -> tuple[Edits, list[Finding]]:
    """Return an API's changes; ``amp`` is taken as the session's name where nothing else keeps it."""
    ua = package_name(source)
    try:
        work = _worked_out(api, source, Names("amp", ua))
        kept = [use for use in source.uses("amp") if not work.edits.covers(source, use)]
        if kept and "amp" in source.imports:
            work = _worked_out(api, source, Names("amp_session", ua))
    except CannotMigrate as error:
        return Edits(), list(error.findings)
    return work.edits, work.findings


def _worked_out(api: ModuleType, source: Source, names: Names) -> Work:
    work = Work(source, names)
    with work.blocking():
        api.plan(work)
    work.decide()
    return work


def package_name(source: Source) -> str:
    """Return what migrated code calls this package."""
    for name, meaning in source.imports.items():
        if meaning == "unifiedamp":
            return name
    return "unifiedamp" if "ua" in source.names() else "ua"


def parse(content: bytes) -> None:
    """Parse a text as this Python does, without its warnings.

    Raises:
        SyntaxError: it is not Python; also what else ``ast.parse`` raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(content)


def _parses(content: bytes) -> bool:
    try:
        parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def check_result(path: str, before: bytes, after: bytes) -> None:
    """Refuse a result that does not parse where the file did."""
    if _parses(before) and not _parses(after):
        raise ConfigError(f"{path}: the migrated text would not be Python (a fault of migrate's); nothing was changed")
