"""What the constants that a call gives a function decide in it: conditions, and which of its lines run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from ..nodes import dotted, literal, targets
from ..source import Source
from ..training.aliases import Aliases

Constants = Mapping[str, object]
_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)


def given_constants(aliases: Aliases, function: cst.FunctionDef, call: cst.Call) -> dict[str, object]:
    """Return parameter → None, True or False, of those that a call, or their default, gives such a value."""
    params = [*function.params.params, *function.params.kwonly_params]
    values = {one.name.value: one.default for one in params if one.default is not None}
    values |= {name: arg.value for arg, one, name in aliases.reached.arguments(call) if one is function}
    if any(arg.star for arg in call.args):
        return {}  # these may be any parameter's
    changed = targets(function.body)
    return {name: literal(value) for name, value in values.items() if _is_constant(value) and name not in changed}


def _is_constant(value: cst.BaseExpression) -> bool:
    return dotted(value) in ("None", "True", "False")


def decided(test: cst.BaseExpression, constants: Constants) -> bool | None:
    """Return whether a condition holds; None where that cannot be seen."""
    if isinstance(test, cst.Name):
        if test.value in constants:
            return bool(constants[test.value])
        return bool(literal(test)) if _is_constant(test) else None
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = decided(test.expression, constants)
        return None if inner is None else not inner
    if isinstance(test, cst.BooleanOperation):
        both = [decided(test.left, constants), decided(test.right, constants)]
        ends = isinstance(test.operator, cst.Or)
        return ends if ends in both else None if None in both else not ends
    return _compared(test, constants) if isinstance(test, cst.Comparison) else None


def _compared(test: cst.Comparison, constants: Constants) -> bool | None:
    """Return whether ``x is None`` or ``x is not None`` holds."""
    one, name = test.comparisons[0], dotted(test.left)
    if len(test.comparisons) != 1 or dotted(one.comparator) != "None" or name not in constants:
        return None
    if isinstance(one.operator, cst.Is | cst.Equal):
        return constants[name] is None
    return constants[name] is not None if isinstance(one.operator, cst.IsNot | cst.NotEqual) else None


def may_run(source: Source, node: cst.CSTNode, function: cst.FunctionDef, constants: Constants) -> bool:
    """Whether a node of a function may run where its parameters have these values."""
    below = node
    for above in source.above(node):
        if isinstance(above, cst.If | cst.IfExp) and below is not above.test:
            holds = decided(above.test, constants)
            if holds is not None and (below is above.body) is not holds:
                return False
        elif isinstance(above, cst.BooleanOperation) and below is above.right:
            if decided(above.left, constants) is isinstance(above.operator, cst.Or):
                return False
        elif isinstance(above, cst.IndentedBlock) and _left_before(above.body, below, constants):
            return False
        if above is function:
            return True
        below = above
    return True


def _left_before(body: Sequence[cst.CSTNode], node: cst.CSTNode, constants: Constants) -> bool:
    """Whether an ``if`` in front of a node surely leaves its block."""
    for one in body:
        if one is node:
            return False
        if not isinstance(one, cst.If):
            continue
        holds = decided(one.test, constants)
        branch = one.body if holds else one.orelse.body if holds is False and isinstance(one.orelse, cst.Else) else None
        if branch is not None and _leaves(branch):
            return True
    return False


def _leaves(branch: cst.BaseSuite) -> bool:
    last = branch.body[-1] if branch.body else None
    if isinstance(last, cst.With):
        return _leaves(last.body)
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], _LEAVES)
