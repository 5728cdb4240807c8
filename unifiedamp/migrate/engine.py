"""From a file's text to its migrated text: each old API in turn, the imports, and a check that it still parses."""

from __future__ import annotations

import re
from types import ModuleType

import libcst as cst

from ..errors import ConfigError
from . import apex, facades, keras, mxnet, sessions_v1, torch_amp
from .bounds import too_big
from .check import check as check_torch
from .check import check_limits, with_rejections
from .checked import Check, refusals
from .edits import Edits
from .folds import as_before, without_flags
from .halves import migrate_gluon_half, migrate_half
from .imports import tidy
from .keras.check import check as check_keras
from .mxnet.check import check as check_mxnet
from .planning import UNREADABLE, check_result, package_name, parse, plan
from .report import CannotMigrate, Migration
from .source import Source
from .training.merge import merge
from .unresolved import unresolved

APIS: tuple[ModuleType, ...] = (apex, torch_amp, keras, sessions_v1, mxnet)
TORCH = (apex.NAME, torch_amp.NAME)
CHECKS: dict[str, Check] = dict.fromkeys(TORCH, check_torch) | {keras.NAME: check_keras, mxnet.NAME: check_mxnet}
_HINT = re.compile(
    rb"\bamp\b|autocast|GradScaler|mixed_precision|LossScale|graph_rewrite|get_(un)?scaled_|scaler\.scale\(|"
    rb"(Native|Apex)Scaler|FP16_Optimizer|fp16_utils"
)


def migrate(path: str, content: bytes, to: str = "amp", halves: bool = True) -> Migration:
    """Migrate one file's text; nothing is written.

    Args:
        path: what messages call the file.
        content: its bytes; encoding, line ends and everything outside the rewritten lines are kept.
        to: "amp" for the session's calls, "compat" for the old calls over ``unifiedamp.compat``.
        halves: functions that are given a scaler, or use Apex, without anything in the file that makes one, are
            migrated too, to take a session; False where files that call them are not migrated with it.

    Raises:
        ConfigError: it is not Python, or longer or nested deeper than migrate reads.
    """
    uses = sum(1 for _ in _HINT.finditer(content))
    reason = too_big(content, uses)
    if reason is not None and uses:
        raise ConfigError(f"{path}: {reason}")
    if not uses:
        if reason is None:
            _check(path, content)
        return Migration(path, content, content)
    try:
        return _to_compat(path, content) if to == "compat" else _migrate(path, content, halves)
    except RecursionError:
        raise ConfigError(f"{path}: expressions in it nest too deep for migrate; shorten them") from None


def _migrate(path: str, content: bytes, halves: bool) -> Migration:
    source = _read(path, content)
    try:
        folded, notes = without_flags(source)
    except CannotMigrate as error:
        return Migration(path, content, content, (), error.findings)
    if folded != source.text:
        done = _migrate_as_read(path, folded, _read(path, folded), halves)
        found = [*as_before(done.findings, source.text, folded), *(notes if done.changed else ())]
        return Migration(path, content, done.after if done.changed else content, done.apis, tuple(sorted(set(found))))
    return _migrate_as_read(path, content, source, halves)


def _migrate_as_read(path: str, content: bytes, source: Source, halves: bool) -> Migration:
    half = migrate_half(path, content, source) or migrate_gluon_half(path, content, source) if halves else None
    return _migrate_whole(path, content, source) if half is None else half


def _migrate_whole(path: str, content: bytes, source: Source) -> Migration:
    edits, findings, apis, old = Edits(), [], [], []
    needs: list[str] = []
    for api in APIS:
        if not api.found(source):
            continue
        made, said = plan(api, source)
        if made and api.NAME in CHECKS:
            # With a GradScaler beside it, torch_amp refuses the file, and gives the rest of the reasons.
            half = api is apex and source.calls(*torch_amp.SCALERS)
            check = check_limits if half else CHECKS[api.NAME]
            torch = api.NAME in TORCH
            refused = refusals(path, api, check, source, made, package_name(source), indented=torch)
            made, said = (Edits(), refused) if refused else (made, said)
        findings += said
        if made:
            edits.merge(made)
            apis.append(api.NAME)
            old += api.OLD_IMPORTS
            needs += getattr(api, "NEEDS", ())
    if not findings and not apis:
        findings += unresolved(source)
    torch = any(name in TORCH for name in apis)
    if torch and any(found.blocks for found in findings):
        edits, apis = Edits(), []  # half of a training loop would not run
    if not edits:
        return Migration(path, content, content, (), tuple(sorted(findings)))
    tidy(source, edits, old, package_name(source), needs)
    module = edits.apply(source.module)
    module = merge(module) if torch else module
    after = with_rejections(Source(module.bytes))[""] if torch or mxnet.NAME in apis else module.bytes
    check_result(path, content, after)
    return Migration(path, content, after, tuple(apis), tuple(sorted(findings)))


def _to_compat(path: str, content: bytes) -> Migration:
    source = _read(path, content)
    edits, findings = facades.rewrite(source)
    if not edits:
        return Migration(path, content, content, (), tuple(sorted(findings)))
    after = edits.apply(source.module).bytes
    check_result(path, content, after)
    return Migration(path, content, after, (facades.NAME,), tuple(sorted(findings)))


def _read(path: str, content: bytes) -> Source:
    try:
        return Source(content)
    except UNREADABLE as error:
        raise _no_python(path, content, error) from None


def _check(path: str, content: bytes) -> None:
    try:
        cst.parse_module(content)
    except UNREADABLE as error:
        raise _no_python(path, content, error) from None


def _no_python(path: str, content: bytes, error: Exception) -> ConfigError:
    """Return the error in Python's own words, where it has some."""
    try:
        parse(content)
    except SyntaxError as own:
        if own.lineno:
            return ConfigError(f"{path}:{own.lineno}: not valid Python: {own.msg}")
        return ConfigError(f"{path}: cannot be read as Python: {own.msg}")
    except (ValueError, RecursionError, MemoryError) as own:
        return ConfigError(f"{path}: cannot be read as Python: {own}")
    said = error.message if isinstance(error, cst.ParserSyntaxError) else str(error)
    return ConfigError(f"{path}: cannot be read: {' '.join(said.split())}")
