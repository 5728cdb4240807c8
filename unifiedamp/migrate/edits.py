"""Changes to a syntax tree: collected first, applied at once, so that everything else keeps its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import libcst as cst

from .source import Source, Statement


class Wrap(NamedTuple):
    """Statements of one block, first to last, that go under ``header``."""

    first: Statement
    last: Statement
    header: str


class Edits:
    """What is to change in one file.

    Attributes:
        lines: statement → the code that replaces it; none removes it.
        wraps: statements that go under a new ``with``.
    """

    def __init__(self) -> None:
        self.lines: dict[Statement, list[str]] = {}
        self._after: dict[Statement, list[str]] = {}
        self._before: dict[Statement, list[str]] = {}
        self.wraps: dict[Wrap, None] = {}  # in order
        self._expressions: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._changes: dict[cst.CSTNode, Callable[[Any], cst.CSTNode]] = {}

    def __bool__(self) -> bool:
        kinds = (self.lines, self._after, self._before, self.wraps, self._expressions, self._changes)
        return any(map(bool, kinds))

    def expression(self, node: cst.BaseExpression, code: str) -> None:
        """Replace an expression."""
        self._expressions[node] = cst.parse_expression(code)

    def change(self, node: cst.CSTNode, by: Callable[[Any], cst.CSTNode]) -> None:
        """Change a node that is no statement, after the changes inside it."""
        self._changes[node] = by

    def statement(self, node: Statement, *code: str) -> None:
        """Replace a statement; no code removes it."""
        self.lines[node] = list(code)

    def after(self, node: Statement, code: str) -> None:
        """Add a statement behind another one."""
        self._after.setdefault(node, []).append(code)

    def before(self, node: Statement, code: str) -> None:
        """Add a statement before another one."""
        self._before.setdefault(node, []).append(code)

    def wrap(self, first: Statement, last: Statement, header: str) -> None:
        """Put statements of one block under ``header``; twice the same is once."""
        self.wraps[Wrap(first, last, header)] = None

    def merge(self, other: Edits) -> None:
        """Take over another's changes."""
        self.lines |= other.lines
        for mine, its in ((self._after, other._after), (self._before, other._before)):
            for node, code in its.items():
                mine.setdefault(node, []).extend(code)
        self.wraps |= other.wraps
        self._expressions |= other._expressions
        self._changes |= other._changes

    def covers(self, source: Source, node: cst.CSTNode) -> bool:
        """Whether a node is in what is replaced or removed."""
        around = (node, *source.above(node))
        return any(one in self.lines or one in self._expressions for one in around)

    def apply(self, module: cst.Module) -> cst.Module:
        """Return the changed tree."""
        return cst.ensure_type(module.visit(_Apply(self, module)), cst.Module)


class _Apply(cst.CSTTransformer):
    def __init__(self, edits: Edits, module: cst.Module) -> None:
        super().__init__()
        self._edits = edits
        self._config = module.config_for_parsing

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """See ``CSTTransformer``: expressions are replaced here, statements by the block they stand in."""
        if original_node in self._edits._expressions:
            return _in_brackets(original_node, self._edits._expressions[original_node])
        if original_node in self._edits._changes:
            return self._edits._changes[original_node](updated_node)
        if not isinstance(original_node, cst.Module | cst.IndentedBlock):
            return updated_node
        body = self._body(original_node.body, updated_node.body)
        if not body and isinstance(original_node, cst.IndentedBlock):
            body = self._parse("pass")
        if isinstance(original_node, cst.Module) and not original_node.body:
            return updated_node
        return updated_node.with_changes(body=body)

    def _body(self, original: Sequence[Any], updated: Sequence[Any]) -> list[Any]:
        body: list[Any] = []
        open_wrap: Wrap | None = None
        inside: list[Any] = []
        wraps = self._merged(original)
        for old, new in zip(original, updated, strict=True):
            open_wrap = open_wrap or wraps.get(old)
            (body if open_wrap is None else inside).extend(self._one(old, new))
            if open_wrap is not None and open_wrap.last is old:
                body += self._under(open_wrap.header, inside)
                open_wrap, inside = None, []
        return body

    def _merged(self, body: Sequence[Any]) -> dict[Statement, Wrap]:
        """Return the regions of a block by their first statements; those that overlap, under one header, as one."""
        places = {statement: place for place, statement in enumerate(body)} if self._edits.wraps else {}
        mine = [wrap for wrap in self._edits.wraps if wrap.first in places and wrap.last in places]
        merged: list[Wrap] = []
        for wrap in sorted(mine, key=lambda wrap: places[wrap.first]):
            before = merged[-1] if merged else None
            if before and before.header == wrap.header and places[wrap.first] <= places[before.last]:
                last = max(before.last, wrap.last, key=places.__getitem__)
                merged[-1] = before._replace(last=last)
            else:
                merged.append(wrap)
        return {wrap.first: wrap for wrap in merged}

    def _one(self, old: Any, new: Any) -> list[Any]:
        edits = self._edits
        code = edits.lines.get(old)
        made = [new] if code is None else _like(new, self._parse(*code))
        before = self._parse(*edits._before.get(old, ()))
        if before and made and hasattr(made[0], "leading_lines"):
            before[0] = before[0].with_changes(leading_lines=made[0].leading_lines)
            made[0] = made[0].with_changes(leading_lines=())
        return [*before, *made, *self._parse(*edits._after.get(old, ()))]

    def _parse(self, *code: str) -> list[Any]:
        return [each for text in code for each in cst.parse_module(text, config=self._config).body]

    def _under(self, header: str, body: list[Any]) -> list[Any]:
        if not body:
            return []
        made = self._parse(f"{header}\n    pass")[0]
        leading = body[0].leading_lines
        body = [body[0].with_changes(leading_lines=()), *body[1:]]
        body = [each.visit(_Unindented()) for each in body]
        return [made.with_changes(leading_lines=leading, body=made.body.with_changes(body=body))]


class _Unindented(cst.CSTTransformer):
    """Leaves blank lines empty, however deep they come to stand."""

    def leave_EmptyLine(self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine) -> cst.EmptyLine:
        """See ``CSTTransformer``."""
        return updated_node if original_node.comment is not None else updated_node.with_changes(indent=False)


def _like(old: Any, new: list[Any]) -> list[Any]:
    """Give the comments around a statement to what replaces it; those of a removed one go with it."""
    if not new:
        return new
    first = new[0].with_changes(leading_lines=old.leading_lines)
    if isinstance(old, cst.SimpleStatementLine):
        if isinstance(first, cst.SimpleStatementLine):
            first = first.with_changes(trailing_whitespace=old.trailing_whitespace)
        elif old.trailing_whitespace.comment is not None:
            first = first.with_changes(body=first.body.with_changes(header=old.trailing_whitespace))
    return [first, *new[1:]]


def _in_brackets(old: Any, new: Any) -> Any:
    """Keep the round brackets that stood around an expression."""
    if getattr(old, "lpar", ()) and not getattr(new, "lpar", True):
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return new
