"""``amp.initialize`` in a ``try`` whose handlers say that Apex is missing: the session needs no Apex, and no try."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ..source import Source, Statement


def outside(source: Source, statement: Statement, gone: Collection[Statement]) -> Statement:
    """Return the ``try`` of which nothing but a statement is left and whose handlers all raise; else the statement.

    Args:
        source: the file.
        statement: the line that prepares.
        gone: statements that the migration removes.
    """
    block = source.block(statement)
    around = source.parents.get(block)
    if not isinstance(around, cst.Try) or around.body is not block or not around.handlers:
        return statement
    alone = all(one is statement or one in gone for one in block.body)
    raises = all(_raises(handler) for handler in around.handlers)
    return around if alone and raises and around.orelse is None and around.finalbody is None else statement


def _raises(handler: cst.ExceptHandler) -> bool:
    last = handler.body.body[-1]
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)
