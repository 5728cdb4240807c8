"""AMP behind a flag: the session is always made, and computes in float32 where the flag is off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import libcst as cst

from ..nodes import dotted, targets, walk
from ..source import Source, Statement
from ..work import Work
from .regions import statements

_PURE = ("is_available", "isinstance", "hasattr", "getattr", "len", "bool", "get", "is_enabled", "device_count")


class Guard(NamedTuple):
    """An ``if`` around the line that makes a session, and the condition of the branch that it is in."""

    node: cst.If
    test: str

    def elsewhere(self, names: Collection[str]) -> bool:
        """Whether another branch binds one of these names too."""
        orelse = self.node.orelse
        return isinstance(orelse, cst.Else) and bool(
            targets(orelse) & set(names) and targets(self.node.body) & set(names)
        )

    def beside(self, source: Source, statement: cst.CSTNode) -> set[str]:
        """Return the variables that the branches without ``statement`` assign."""
        inside = source.inside(statement, self.node.body)
        other = self.node.orelse if inside else self.node.body
        return set() if other is None else targets(other)


def guards(
    source: Source,
    statement: Statement,
    bound: Collection[str],
    answer: Callable[[cst.BaseExpression], str | None] = lambda _: None,
) -> list[Guard]:
    """Return the ``if`` statements around a statement, from the inside out.

    Args:
        source: the file.
        statement: what they are around.
        bound: names that none of their branches may bind before it.
        answer: condition → its code after the migration; None where it stays.
    """
    found: list[Guard] = []
    position: Statement = statement
    while True:
        block = source.block(position)
        owner = source.parents.get(block)
        before = statements(block)[: statements(block).index(position)] if position in block.body else []
        if any(targets(s) & set(bound) for s in before):
            return found
        node = source.parents[owner] if isinstance(owner, cst.Else) else owner
        if not isinstance(node, cst.If) or isinstance(source.parents.get(node), cst.If) or _has_elif(node):
            return found
        test = answer(node.test) or source.code(node.test)
        found.append(Guard(node, _negated(node, test) if isinstance(owner, cst.Else) else " ".join(test.split())))
        position = node


def lift(work: Work, statement: Statement, chain: Sequence[Guard], gone: Collection[Statement]) -> str | None:
    """Say where a session's line can stand outside its guards: ``"before"`` or ``"after"`` the outermost, or None.

    Args:
        work: the file.
        statement: the line that makes the session.
        chain: its guards.
        gone: statements that the migration removes.
    """
    source = work.source
    if not all(_pure(guard.node.test) for guard in chain):
        return None
    first, last = True, True
    position: Statement = statement
    for guard in chain:
        body = statements(source.block(position))
        place = body.index(position)
        first = first and not any(not _goes(s, gone) for s in body[:place])
        last = last and not any(not _goes(s, gone) for s in body[place + 1 :])
        position = guard.node
    return "after" if last else "before" if first else None


def empty(source: Source, statement: Statement, chain: Sequence[Guard], gone: Collection[Statement]) -> bool:
    """Whether nothing is left of the outermost guard once ``statement`` has gone."""
    position: cst.CSTNode = statement
    for guard in chain:
        if guard.node.orelse is not None:
            return False
        if any(s is not position and not _goes(s, gone) for s in statements(source.block(position))):
            return False
        position = guard.node
    return True


def condition(chain: Sequence[Guard]) -> str:
    """Return the code of all guards' conditions."""
    tests = [guard.test for guard in reversed(chain) if guard.test != "True"]
    if len(tests) < 2:
        return tests[0] if tests else "True"
    return " and ".join(f"({test})" if " or " in test or " if " in test else test for test in tests)


def otherwise(work: Work, chain: Sequence[Guard], made: Sequence[cst.CSTNode], *code: str) -> None:
    """Add code to each branch of the guards that makes no session.

    Args:
        work: takes the changes.
        chain: the guards.
        made: the lines that make sessions.
        *code: what makes the session there.
    """
    source = work.source
    text = "\n".join(code)
    for guard in chain:
        branches: list[cst.CSTNode] = [guard.node.body]
        orelse = guard.node.orelse
        while isinstance(orelse, cst.If):
            branches.append(orelse.body)
            orelse = orelse.orelse
        if orelse is None:
            work.edits.change(guard.node, lambda new: _with_else(new, text))
        else:
            branches.append(orelse.body)
        for branch in branches:
            if not any(source.inside(one, branch) for one in made):
                assert isinstance(branch, cst.IndentedBlock)
                work.edits.after(statements(branch)[-1], text)


def _with_else(new: cst.If, code: str) -> cst.If:
    if isinstance(new.orelse, cst.If):
        return new.with_changes(orelse=_with_else(new.orelse, code))
    body = cst.parse_module(code).body
    return new.with_changes(orelse=cst.Else(cst.IndentedBlock(body)))


def _goes(statement: Statement, gone: Collection[Statement]) -> bool:
    """Whether nothing of a statement stays: it is removed, or declares names."""
    if statement in gone:
        return True
    if isinstance(statement, cst.Try):
        parts = [*statement.body.body, *(s for h in statement.handlers for s in h.body.body)]
        return all(isinstance(s, Statement) and (_goes(s, gone) or _complains(s)) for s in parts)
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Global | cst.Pass) for small in statement.body
    )


def _complains(statement: Statement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Raise | cst.Expr)


def _has_elif(node: cst.If) -> bool:
    return isinstance(node.orelse, cst.If)


def _negated(node: cst.If, test: str) -> str:
    code = " ".join(test.split())
    return f"not {code}" if dotted(node.test) else f"not ({code})"


def _pure(test: cst.BaseExpression) -> bool:
    """Whether a condition may be looked at again, or later."""
    return not any(
        isinstance(one, cst.NamedExpr | cst.Await)
        or (isinstance(one, cst.Call) and dotted(one.func).rpartition(".")[2] not in _PURE)
        for one in walk(test)
    )
