"""Small functions that only return a ``GradScaler`` or an autocast: what they return stands where they are called."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..edits import Edits
from ..nodes import argument
from ..report import Finding
from ..source import Source
from .arguments import AUTOCAST, SCALERS, device_of, enabled_of, settings_of
from .substituted import given_values, substituted


def by_factory(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which calls of such functions are what they return, and a note for each function."""
    edits, notes = Edits(), list[Finding]()
    functions = source.of(cst.FunctionDef)
    for function in functions:
        made, name = _returned(source, function), function.name.value
        uses = source.uses(name)
        calls = [call for use in uses for call in [source.parents[use]] if isinstance(call, cst.Call)]
        values = [given_values(function, call) for call in calls]
        if made is None or not calls or len(calls) != len(uses):
            continue
        alone = [one for one in functions if one.name.value == name] == [function] and not source.assigns(name)
        if not alone or any(one is None for one in values) or not isinstance(source.parents[function], cst.Module):
            continue
        for call, given in zip(calls, values, strict=True):
            edits.expression(call, substituted(source.code(made), given or {}))
        edits.statement(function)
        what = f"{name} is gone: what it returned stands where it was called"
        notes.append(Finding(source.line(function), what, "let other files that import it make a session"))
    return edits.apply(source.module).bytes if edits else source.text, notes


def _returned(source: Source, function: cst.FunctionDef) -> cst.Call | None:
    """Return the call that a function returns on each path: the same settings for each version of torch."""
    if function.decorators or function.asynchronous or not _only_returns(function.body.body):
        return None
    values = [one.value for one in source.of(cst.Return) if source.scope(one) is function]
    calls = [one for one in values if isinstance(one, cst.Call)]
    if not calls or len(calls) != len(values):
        return None
    regions = all(source.meaning(call.func) in AUTOCAST for call in calls)
    if not regions and not all(source.meaning(call.func) in SCALERS for call in calls):
        return None
    if regions and len(calls) == 1:
        return None  # followed to where it is entered
    told = [_told(source, call, regions) for call in calls]
    return calls[0] if all(one == told[0] for one in told) else None


def _told(source: Source, call: cst.Call, region: bool) -> tuple[object, ...]:
    dtype = argument(call, "dtype", 1) if region else None
    code = None if dtype is None else source.code(dtype)
    settings = {} if region else settings_of(source, call)
    return device_of(source, call), enabled_of(source, call), code, settings


def _only_returns(body: Sequence[cst.CSTNode]) -> bool:
    """Whether statements return on each path, and do nothing else."""
    if not body or not all(map(_is_quiet, body)):
        return False
    last = body[-1]
    if isinstance(last, cst.SimpleStatementLine):
        return isinstance(last.body[-1], cst.Return)
    blocks = [last.body, *(one.body for one in last.handlers)] if isinstance(last, cst.Try) else []
    if isinstance(last, cst.If) and isinstance(last.orelse, cst.Else):
        blocks = [last.body, last.orelse.body]
    return bool(blocks) and all(_only_returns(block.body) for block in blocks)


def _is_quiet(statement: cst.CSTNode) -> bool:
    """Whether a statement is a text, a return, or a choice between returns."""
    if isinstance(statement, cst.SimpleStatementLine):
        return all(isinstance(one, cst.Return) or _is_text(one) for one in statement.body)
    if isinstance(statement, cst.If):
        branches = [statement.body, *([statement.orelse.body] if isinstance(statement.orelse, cst.Else) else [])]
        chained = isinstance(statement.orelse, cst.If)
        return not chained and all(map(_is_quiet, (one for branch in branches for one in branch.body)))
    if isinstance(statement, cst.Try) and statement.orelse is None and statement.finalbody is None:
        blocks = [statement.body, *(one.body for one in statement.handlers)]
        return all(map(_is_quiet, (one for block in blocks for one in block.body)))
    return False


def _is_text(small: cst.CSTNode) -> bool:
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)
