"""Texts that a branch names before it uses them: ``policy = "mixed_float16"`` before ``set_global_policy(policy)``."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from .nodes import dotted, literal
from .source import Source, Statement


def named_texts(source: Source, body: Sequence[Statement], calls: Sequence[cst.Call]) -> list[Statement]:
    """Return the statements of a branch that name a text which one of ``calls`` is given, and that is named once."""
    given = {dotted(arg.value) for call in calls for arg in call.args} - {""}
    found = []
    for statement in body:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        name = dotted(small.targets[0].target)
        if name in given and _is_text(small.value) and source.assigns(name) == [small]:
            found.append(statement)
    return found


def _is_text(value: cst.BaseExpression) -> bool:
    """Whether a value is a text, or one of two: ``"mixed_bfloat16" if on_tpu else "mixed_float16"``."""
    if isinstance(value, cst.IfExp):
        return bool(dotted(value.test)) and _is_text(value.body) and _is_text(value.orelse)
    return isinstance(literal(value), str)
