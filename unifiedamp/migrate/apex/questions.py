"""Conditions that ask whether amp was imported: ``amp is None``, ``args.fp16 and amp``, ``not amp``."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted
from ..source import Source

_LOGIC = (cst.BooleanOperation, cst.UnaryOperation, cst.Comparison)


def asked(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a node is a whole condition: of an ``if`` or ``assert``, or logic that no other logic is around."""
    parent = source.parents[node]
    if isinstance(parent, cst.BooleanOperation) or (
        isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
    ):
        return False
    if isinstance(node, _LOGIC):
        return True
    if isinstance(parent, cst.If | cst.IfExp | cst.Assert | cst.While):
        return parent.test is node
    call = source.parents.get(parent) if isinstance(parent, cst.Arg) else None
    return isinstance(call, cst.Call) and dotted(call.func) == "bool"


def answered(source: Source, node: cst.BaseExpression) -> str | None:
    """Return the code of a condition in which amp is there; None where it does not ask for it."""
    if source.meaning(node) == "apex.amp":
        return "True"
    if isinstance(node, cst.Comparison):
        return _compared(source, node)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        inner = answered(source, node.expression)
        return None if inner is None else {"True": "False", "False": "True"}.get(inner, f"not ({inner})")
    if isinstance(node, cst.BooleanOperation):
        return _joined(source, node)
    return None


def _compared(source: Source, node: cst.Comparison) -> str | None:
    one = node.comparisons[0]
    if source.meaning(node.left) != "apex.amp" or dotted(one.comparator) != "None":
        return None
    if isinstance(one.operator, cst.Is | cst.Equal):
        return "False"
    return "True" if isinstance(one.operator, cst.IsNot | cst.NotEqual) else None


def _joined(source: Source, node: cst.BooleanOperation) -> str | None:
    """Leave out the side that always, or never, decides."""
    left, right = answered(source, node.left), answered(source, node.right)
    if left is None and right is None:
        return None
    sides = [left or source.code(node.left), right or source.code(node.right)]
    neutral, decides = ("True", "False") if isinstance(node.operator, cst.And) else ("False", "True")
    if decides in sides:
        return decides
    kept = [side for side in sides if side != neutral]
    word = " and " if isinstance(node.operator, cst.And) else " or "
    return word.join(kept) or neutral
