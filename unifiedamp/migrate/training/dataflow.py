"""What a statement reads and writes: assignments, and calls that put something into a list or a dictionary."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from ..nodes import dotted, targets, walk
from ..source import Source, Statement

_FILLS = (
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault",
    "add_", "sub_", "mul_", "div_", "copy_",
)  # fmt: skip


class Dataflow(NamedTuple):
    """The variables that a statement writes, those that have no other value behind it, and those that it uses."""

    targets: set[str]
    replaced: set[str]
    used: set[str]

    @classmethod
    def of(cls, source: Source, statement: Statement) -> Dataflow:
        """Return what a statement, with all that is in it, reads and writes."""
        written = targets(statement) | filled(source, statement)
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign):
            return cls(written, set(), names_in(source, statement))
        parts: list[cst.BaseExpression] = [target.target for target in small.targets]
        for part in parts:
            if isinstance(part, cst.Tuple | cst.List):
                parts += [element.value for element in part.elements]
        return cls(written, {dotted(part) for part in parts} - {""}, names_in(source, small.value))


def filled(source: Source, node: cst.CSTNode) -> set[str]:
    """Return the variables that calls in a node put something into, as ``outputs`` of ``outputs.append(one)``."""
    return {filled_by(source, one) for one in walk(node) if isinstance(one, cst.Call)} - {""}


def filled_by(source: Source, call: cst.Call) -> str:
    """Return the variable that a call puts something into, or ``""``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _FILLS or not call.args:
        return ""
    # A result that is used, as of ``lr = schedule.update(step)``, says that the call is for that.
    return _owner(func.value) if source.is_alone(call) else ""


def names_in(source: Source, node: cst.CSTNode) -> set[str]:
    """Return the variables that a node uses, plain ones and attributes."""
    used = {dotted(one) for one in walk(node) if isinstance(one, cst.Attribute)}
    used |= {one.value for one in walk(node) if isinstance(one, cst.Name) and source.is_reference(one)}
    return used - {"", "self"}


def _owner(node: cst.BaseExpression) -> str:
    """Return the variable of ``outputs``, ``outputs[k]`` and ``outputs.setdefault(k, [])``."""
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        else:
            return dotted(node)
