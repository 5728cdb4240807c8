"""From a file's text to its migrated text: each old API in turn, the imports, and a check that it still parses."""

from __future__ import annotations

import ast
import re
import warnings
from types import ModuleType

import libcst as cst

from ..errors import ConfigError
from . import apex, keras, mxnet, torch_amp
from .edits import Edits
from .imports import tidy
from .report import CannotMigrate, Finding, Migration
from .sessions import Names
from .source import Source

APIS: tuple[ModuleType, ...] = (apex, torch_amp, keras, mxnet)
_HINT = re.compile(rb"\bamp\b|autocast|GradScaler|mixed_precision|LossScale|graph_rewrite")


def migrate(path: str, content: bytes) -> Migration:
    """Migrate one file's text; nothing is written.

    Args:
        path: what messages call the file.
        content: its bytes; encoding, line ends and everything outside the rewritten lines are kept.

    Raises:
        ConfigError: it is no Python.
    """
    if not _HINT.search(content):
        _check(path, content)
        return Migration(path, content, content)
    source = _read(path, content)
    edits, findings, apis, old = Edits(), [], [], []
    for api in APIS:
        if not api.found(source):
            continue
        made, said = _plan(api, source)
        findings += said
        if made:
            edits.merge(made)
            apis.append(api.NAME)
            old += api.OLD_IMPORTS
    if not edits:
        return Migration(path, content, content, (), tuple(sorted(findings)))
    tidy(source, edits, old, _ua(source))
    after = edits.apply(source.module).bytes
    _check_result(path, content, after)
    return Migration(path, content, after, tuple(apis), tuple(sorted(findings)))


def _read(path: str, content: bytes) -> Source:
    try:
        return Source(content)
    except cst.ParserSyntaxError as error:
        raise ConfigError(f"{path}:{error.raw_line}: this is no Python: {error.message}") from None
    except (UnicodeError, LookupError, ValueError, RecursionError, SyntaxError) as error:
        raise ConfigError(f"{path}: cannot be read as Python: {' '.join(str(error).split())}") from None


def _check(path: str, content: bytes) -> None:
    try:
        cst.parse_module(content)
    except cst.ParserSyntaxError as error:
        raise ConfigError(f"{path}:{error.raw_line}: this is no Python: {error.message}") from None
    except (UnicodeError, LookupError, ValueError, RecursionError, SyntaxError) as error:
        raise ConfigError(f"{path}: cannot be read as Python: {' '.join(str(error).split())}") from None


def _plan(api: ModuleType, source: Source) -> tuple[Edits, list[Finding]]:
    """Return an API's changes; ``amp`` is taken as the session's name where nothing else keeps it."""
    ua = _ua(source)
    try:
        edits, findings = api.plan(source, Names("amp", ua))
        kept = [use for use in source.uses("amp") if not edits.covers(source, use)]
        if kept and "amp" in source.imports:
            edits, findings = api.plan(source, Names("amp_session", ua))
    except CannotMigrate as error:
        return Edits(), list(error.findings)
    return edits, findings


def _ua(source: Source) -> str:
    for name, meaning in source.imports.items():
        if meaning == "unifiedamp":
            return name
    return "unifiedamp" if "ua" in source.names() else "ua"


def _parses(content: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def _check_result(path: str, before: bytes, after: bytes) -> None:
    """Refuse a result that does not parse where the file did."""
    if _parses(before) and not _parses(after):
        raise ConfigError(f"{path}: the migrated text would not be Python (a fault of migrate's); nothing was changed")
