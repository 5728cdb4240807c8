"""Keras mixed precision behind a flag."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..branches import name_of
from ..flags import Old, fold
from ..nodes import dotted, literal, targets, walk
from ..report import Finding
from ..source import Source
from .given import works
from .graphs import graph_step
from .words import ASKED, LOOP, POLICY, REWRITE, VALUE, WRAPPER, calls_of


def without_flags(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text with one branch left where a flag chose between mixed precision and none.

    Raises:
        CannotMigrate: the branches are not understood.
    """
    policies, rewrites = calls_of(source, POLICY), calls_of(source, REWRITE)
    off = {call for call in policies if is_float32(source, call) or puts_back(source, call)}
    starts = {*policies, *rewrites} - off
    if not (policies or rewrites) or graph_step(source) is not None:
        return source.text, []  # plan says why this is not migrated
    wrappers, values, own = {*calls_of(source, WRAPPER)}, {*calls_of(source, VALUE)}, works(source)

    def is_off(statement: cst.BaseStatement) -> bool:
        calls = [n for n in walk(statement) if isinstance(n, cst.Call)]
        return any(call in off for call in calls) or any(call in values for call in calls)

    return fold(
        source,
        Old(
            start=lambda call: call in starts,
            setup=lambda call: call in wrappers or call in values,
            loop=lambda call: name_of(call) in LOOP and source.scope(call) not in own,
            plain=lambda body, other: _plain(body, other),
            off=is_off,
            value=lambda call: call in values,
        ),
    )


def is_float32(source: Source, call: cst.Call) -> bool:
    """Whether a call sets a policy that mixes nothing."""
    given = call.args[0].value if call.args else None
    inner = given.args[0].value if isinstance(given, cst.Call) and given.args else given
    if isinstance(inner, cst.Name):
        before = [a for a in source.assigns(inner.value) if source.scope(a) is source.scope(call)]
        before = [a for a in before if source.order[a] < source.order[call]]
        beside = bool(before) and source.in_block(call, source.block(source.statement(before[-1]))) is not None
        made = before[-1].value if beside else None
        inner = made.args[0].value if isinstance(made, cst.Call) and made.args else made
    return literal(inner) in ("float32", "float64")


def puts_back(source: Source, call: cst.Call) -> bool:
    """Whether a call sets the policy that a function found, behind a float32 one: ``old = global_policy()``."""
    name, scope = dotted(call.args[0].value) if call.args else "", source.scope(call)
    made = [one.value for one in source.assigns(name) if source.scope(one) is scope]
    asked = made[0] if len(made) == 1 else None
    if not isinstance(asked, cst.Call) or not ASKED.fullmatch(source.meaning(asked.func)):
        return False
    between = [one for one in calls_of(source, POLICY) if source.order[asked] < source.order[one] < source.order[call]]
    return bool(between) and all(is_float32(source, one) and source.scope(one) is scope for one in between)


def _plain(body: Sequence[cst.BaseStatement], other: Sequence[cst.BaseStatement]) -> bool:
    """Whether the other branch takes the same gradients, unscaled."""
    made = {name for each in body for name in targets(each)}
    for each in other:
        if not isinstance(each, cst.SimpleStatementLine) or len(each.body) != 1:
            return False
        (small,) = each.body
        takes = isinstance(small, cst.Assign) and (
            isinstance(small.value, cst.Name)
            or (isinstance(small.value, cst.Call) and name_of(small.value) in ("gradient", "apply_gradients"))
        )
        if not (isinstance(small, cst.Pass) or (takes and targets(each) <= made)):
            return False
    return True
