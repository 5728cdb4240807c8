"""Imports of a migrated file: those that nothing needs any more go, and ``import unifiedamp as ua`` comes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import libcst as cst

from .edits import Edits
from .nodes import dotted
from .source import Source, Statement

Import = cst.Import | cst.ImportFrom


def tidy(
    source: Source, edits: Edits, old: Sequence[str], ua: str, needs: Sequence[str] = (), package: bool = True
) -> None:
    """Drop imports of ``old`` that only replaced code used, and import this package.

    Args:
        source: the file.
        edits: its changes, complete.
        old: dotted names whose imports may go.
        ua: what the migrated code calls this package.
        needs: other imports that it needs.
        package: whether it uses this package by name.
    """
    gone: list[Statement] = []
    imports: list[Import] = [*source.of(cst.Import), *source.of(cst.ImportFrom)]
    for node in imports:
        drop = [a for a in _aliases(node) if _is_old(node, a, old) and _unused(source, edits, a)]
        if drop and len(drop) == len(_aliases(node)):
            statement = _with_its_try(source, source.statement(node))
            edits.statement(statement)
            gone.append(statement)
        elif drop:
            edits.change(node, functools.partial(_without, node, drop))
    there = not package or "unifiedamp" in source.imports.values()
    lines = [] if there else ["import unifiedamp as ua" if ua == "ua" else "import unifiedamp"]
    if lines or needs:
        _add(source, edits, gone, "\n".join([*lines, *needs]))


def _aliases(node: Import) -> Sequence[cst.ImportAlias]:
    return () if isinstance(node.names, cst.ImportStar) else node.names


def _is_old(node: Import, alias: cst.ImportAlias, old: Sequence[str]) -> bool:
    name = dotted(alias.name)
    if isinstance(node, cst.ImportFrom):
        name = f"{dotted(node.module)}.{name}" if node.module is not None else ""
    return any(name == one or name.startswith(f"{one}.") for one in old)


def _unused(source: Source, edits: Edits, alias: cst.ImportAlias) -> bool:
    bound = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
    uses = source.uses(bound)
    return bool(uses) and all(edits.covers(source, use) for use in uses)


def _without(node: Import, drop: Sequence[cst.ImportAlias], new: Import) -> Import:
    kept = [n for old, n in zip(_aliases(node), _aliases(new), strict=True) if old not in drop]
    kept[-1] = kept[-1].with_changes(comma=_aliases(new)[-1].comma)
    return new.with_changes(names=kept)


def _with_its_try(source: Source, statement: Statement) -> Statement:
    """Return the ``try`` around an import that does nothing but complain when it fails, else the import."""
    block = source.block(statement)
    around = source.parents.get(block)
    if not isinstance(around, cst.Try) or around.body is not block or len(block.body) > 1:
        return statement
    if around.orelse or around.finalbody or not all(_complains(h) for h in around.handlers):
        return statement
    return around


def _complains(handler: cst.ExceptHandler) -> bool:
    quiet = (cst.Raise, cst.Pass, cst.Expr)
    return all(isinstance(s, cst.SimpleStatementLine) and isinstance(s.body[0], quiet) for s in handler.body.body)


def _add(source: Source, edits: Edits, gone: Sequence[Statement], line: str) -> None:
    for statement in gone:
        if source.block(statement) is source.module:
            edits.statement(statement, line)
            return
    header = list(_header(source.module))
    if header:
        edits.after(header[-1], line)
    else:
        first = next(s for s in source.module.body if isinstance(s, Statement))
        edits.before(first, line)


def _header(module: cst.Module) -> Iterator[Statement]:
    """Yield the docstring and the imports that a file begins with."""
    for statement in module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            if isinstance(statement, cst.Try | cst.If):
                continue
            return
        if all(isinstance(small, Import) for small in statement.body):
            yield statement
        elif not _is_text(statement):
            return


def _is_text(statement: cst.SimpleStatementLine) -> bool:
    one = statement.body[0]
    return isinstance(one, cst.Expr) and isinstance(one.value, cst.SimpleString | cst.ConcatenatedString)
