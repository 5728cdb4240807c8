"""Variables that an ``if`` with ``elif`` and no ``else`` makes, and that the lines behind it need on every path."""

from __future__ import annotations

import libcst as cst

from ..nodes import walk
from ..source import Source, Statement


def needed_anyway(source: Source, name: cst.Name, place: cst.CSTNode) -> bool:
    """Whether a function fails without a variable in any case: one ``if`` alone makes it, and later lines use it.

    Args:
        source: the file.
        name: the variable, where it is used first.
        place: the call that uses it first.
    """
    statement, scope = source.statement(place), source.scope(place)
    block = source.block(statement)
    made = [one for one in source.assigns(name.value) if source.scope(one) is scope and one is not source.simple(place)]
    makers = {source.in_block(one, block) for one in made}
    if len(makers) != 1 or not all(isinstance(one, cst.If) and isinstance(one.orelse, cst.If) for one in makers):
        return False
    return any(_uses(source, one, name.value) for one in source.after(statement))


def _uses(source: Source, statement: Statement, name: str) -> bool:
    """Whether a statement uses a variable on every path through it; a loop is taken to have a turn."""
    if isinstance(statement, cst.SimpleStatementLine):
        return any(
            isinstance(one, cst.Name) and one.value == name and source.is_reference(one) for one in walk(statement)
        )
    inside = statement.body.body if isinstance(statement, cst.For | cst.While | cst.With) else ()
    return any(_uses(source, one, name) for one in inside if isinstance(one, Statement))
