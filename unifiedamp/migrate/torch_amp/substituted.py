"""What an expression of a function is at one of its calls: parameters are replaced by what the call gives."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ..nodes import dotted, walk


def given_values(function: cst.FunctionDef, call: cst.Call) -> dict[str, cst.BaseExpression] | None:
    """Return parameter → what a call gives for it; None where that cannot be seen, or may not be evaluated twice."""
    params = [*function.params.params, *function.params.kwonly_params]
    params = params[1:] if params and params[0].name.value == "self" else params
    values = {one.name.value: one.default for one in params if one.default is not None}
    names = [one.name.value for one in params]
    for place, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else names[place] if place < len(names) else ""
        if arg.star or name not in names or not _is_pure(arg.value):
            return None
        values[name] = arg.value
    return values if set(values) == set(names) else None


def substituted(code: str, values: Mapping[str, cst.BaseExpression]) -> str:
    """Return an expression's code with names replaced by expressions."""
    made = cst.parse_expression(code).visit(_Substitute(values))
    assert isinstance(made, cst.BaseExpression)
    return cst.Module([]).code_for_node(made)


def _is_pure(value: cst.BaseExpression) -> bool:
    return not any(isinstance(one, cst.Call | cst.Await | cst.NamedExpr) for one in walk(value))


class _Substitute(cst.CSTTransformer):
    def __init__(self, values: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self._values = values
        self._kept: set[cst.CSTNode | None] = set()

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Keep the attribute's name; see ``CSTTransformer``."""
        self._kept.add(node.attr)

    def visit_Arg(self, node: cst.Arg) -> None:
        """Keep the keyword; see ``CSTTransformer``."""
        self._kept.add(node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Replace a name; see ``CSTTransformer``."""
        value = self._values.get(original_node.value)
        if value is None or original_node in self._kept:
            return updated_node
        alone = dotted(value) or isinstance(value, cst.SimpleString | cst.Integer | cst.Float | cst.Subscript)
        return value if alone or value.lpar else value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
