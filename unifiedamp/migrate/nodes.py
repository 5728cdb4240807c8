"""Questions to a node of the syntax tree alone: its dotted name, what is in it, what it assigns, a call's arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import libcst as cst


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and everything in it."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(reversed(one.children))


def dotted(node: cst.CSTNode) -> str:
    """Return ``a.b.c`` for such an expression, or ``""``."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    return ".".join([node.value, *reversed(parts)]) if isinstance(node, cst.Name) else ""


def parameters(function: cst.FunctionDef) -> list[str]:
    """Return the names of a function's parameters, positional ones first."""
    params = function.params
    return [p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)]


def roots(node: cst.CSTNode) -> set[str]:
    """Return the names that an expression looks at, of ``args.amp`` the first one; ``self`` left out."""
    if isinstance(node, cst.Attribute):
        return roots(node.value)
    if isinstance(node, cst.Name):
        return {node.value} - {"self"}
    return {name for child in node.children for name in roots(child)}


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.BaseExpression | None:
    """Return a call's argument by keyword, or by position."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
    plain = [arg for arg in call.args if arg.keyword is None and not arg.star]
    return plain[position].value if position is not None and position < len(plain) else None


def keywords(call: cst.Call) -> set[str]:
    """Return the names of a call's keyword arguments; ``*`` where there are starred ones."""
    return {arg.keyword.value if arg.keyword else "*" for arg in call.args if arg.keyword or arg.star}


def conjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the parts of ``a and b and c``."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*conjuncts(test.left), *conjuncts(test.right)]
    return [test]


def none_of(test: cst.BaseExpression) -> str:
    """Return the name of which a condition says that it is None or false: ``x is None``, ``not x``; else nothing."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return dotted(test.expression)
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        target = test.comparisons[0]
        if isinstance(target.operator, cst.Is | cst.Equal) and dotted(target.comparator) == "None":
            return dotted(test.left)
    return ""


def literal(node: cst.BaseExpression | None) -> object:
    """Return the value of a constant, or of bounded arithmetic with numbers (``2.**16``, ``1 << 16``), else None.

    Nothing is evaluated: text, True and False, and numbers up to 2**64 in size, however they are combined.
    """
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        return node.evaluated_value
    if isinstance(node, cst.Name):
        return {"True": True, "False": False}.get(node.value)
    return None if node is None else _number(node)


_LARGEST = 2.0**64
_ARITHMETIC: dict[type[cst.BaseBinaryOp], Callable[[Any, Any], Any]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
    cst.FloorDivide: operator.floordiv,
    cst.Power: operator.pow,
    cst.LeftShift: operator.lshift,
}


def _number(node: cst.BaseExpression, depth: int = 4) -> int | float | None:
    """Return a number of at most 2**64 in size, of a constant or of arithmetic with a few of them."""
    value: int | float | None = None
    if isinstance(node, cst.Integer | cst.Float) and len(node.value) <= 40:
        value = node.evaluated_value
    elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus) and depth:
        inner = _number(node.expression, depth - 1)
        value = None if inner is None else -inner
    elif isinstance(node, cst.BinaryOperation) and depth:
        value = _combined(node, depth - 1)
    return value if value is not None and abs(value) <= _LARGEST else None


def _combined(node: cst.BinaryOperation, depth: int) -> int | float | None:
    left, right = _number(node.left, depth), _number(node.right, depth)
    combine = _ARITHMETIC.get(type(node.operator))
    if left is None or right is None or combine is None:
        return None
    if isinstance(node.operator, cst.Power | cst.LeftShift) and abs(right) > 64:
        return None
    try:
        value = combine(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return value if isinstance(value, int | float) else None


def targets(node: cst.CSTNode) -> set[str]:
    """Return the variables that are assigned in a node."""
    found: set[str] = set()
    for one in walk(node):
        goals: Sequence[cst.BaseExpression] = ()
        if isinstance(one, cst.Assign):
            goals = [target.target for target in one.targets]
        elif isinstance(one, cst.AugAssign | cst.AnnAssign | cst.NamedExpr | cst.For):
            goals = [one.target]
        for goal in goals:
            found |= {dotted(part) for part in walk(goal) if isinstance(part, cst.Name | cst.Attribute)} - {""}
    return found


def assigned(node: cst.CSTNode) -> set[str]:
    """Return the variables and attributes that get a value in a node: of ``a.b = 1`` that, and not ``a``."""
    names = targets(node)
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
