"""Questions to a node of the syntax tree alone: its dotted name, what is in it, what it assigns, a call's arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

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


def literal(node: cst.BaseExpression | None) -> object:
    """Return the value of an expression of constants and arithmetic (``2.**16``), else None."""
    if node is None:
        return None
    code = cst.Module([]).code_for_node(node)
    try:
        tree = ast.parse(code.strip(), mode="eval")
        known = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        if not all(isinstance(each, known) for each in ast.walk(tree)) or len(code) > 40:
            return None
        return eval(compile(tree, "constant", "eval"), {"__builtins__": {}})
    except Exception:
        return None


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
