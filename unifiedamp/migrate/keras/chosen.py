"""Policies that a flag chooses: in an expression, or in branches that make one variable."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from ..nodes import dotted, literal
from ..source import Source
from ..work import Work
from .words import VALUE


class Choice(NamedTuple):
    """A policy under a flag, where float32 is set without it.

    Attributes:
        policy: the policy's code.
        flag: the flag's code.
        made: the statements that make the variable which holds it, where nothing else is in them.
    """

    policy: str
    flag: str
    made: tuple[cst.CSTNode, ...] = ()


class _Pair(NamedTuple):
    """Two values of one expression, the first one under a test."""

    one: cst.BaseExpression
    other: cst.BaseExpression
    test: cst.BaseExpression
    made: tuple[cst.CSTNode, ...] = ()


def choice_of(source: Source, call: cst.Call) -> Choice | None:
    """Return what a call that sets a policy is given, if that is ``"mixed_float16" if flag else "float32"``."""
    given = call.args[0].value if call.args else None
    pair = None if given is None else _pair(source, given)
    if pair is None:
        return None
    names, flag = (_name(source, pair.one), _name(source, pair.other)), source.code(pair.test).strip()
    if names[0] and names[1] == "float32":
        return Choice(f'"{names[0]}"', flag, pair.made)
    if names[1] and names[0] == "float32":
        return Choice(f'"{names[1]}"', f"not ({flag})", pair.made)
    return None


def value_of(source: Source, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what a variable was assigned, once."""
    assigns = source.assigns(dotted(node)) if dotted(node) else []
    return assigns[0].value if len(assigns) == 1 else node


def drop_unused(work: Work, policy: cst.BaseExpression, made: tuple[cst.CSTNode, ...]) -> None:
    """Remove the lines that make a Keras policy which nothing else looks at."""
    name = dotted(policy)
    assigns = work.source.assigns(name) if name else []
    if len(work.source.uses(name)) != len(assigns) + 1:
        return
    if len(assigns) == 1:
        work.edits.statement(work.source.statement(assigns[0]))
    for statement in made:
        work.edits.statement(work.source.statement(statement))


def makes_policy(source: Source, given: cst.BaseExpression) -> bool:
    """Whether a variable holds Keras's own policies, which a session cannot be told."""
    values = [assign.value for assign in source.assigns(dotted(given))] if dotted(given) else []
    return any(isinstance(one, cst.Call) and VALUE.fullmatch(source.meaning(one.func)) for one in values)


def _pair(source: Source, given: cst.BaseExpression) -> _Pair | None:
    value = value_of(source, given)
    if isinstance(value, cst.Call) and VALUE.fullmatch(source.meaning(value.func)) and value.args:
        given = value.args[0].value
        value = value_of(source, given)
    if isinstance(value, cst.IfExp):
        return _Pair(value.body, value.orelse, value.test)
    return _branches(source, given) if isinstance(given, cst.Name) else None


def _name(source: Source, value: cst.BaseExpression) -> str:
    """Return the name of a policy; nothing where more is said than that."""
    if isinstance(value, cst.Call) and VALUE.fullmatch(source.meaning(value.func)) and len(value.args) == 1:
        value = value.args[0].value
    name = literal(value)
    return name if isinstance(name, str) else ""


def _branches(source: Source, given: cst.Name) -> _Pair | None:
    """Return the values that two branches give a variable; or a branch, and a line before it."""
    assigns = [one for one in source.assigns(given.value) if source.scope(one) is source.scope(given)]
    if len(assigns) != 2 or len(source.assigns(given.value)) != 2:
        return None
    blocks = [source.block(source.statement(one)) for one in assigns]
    chooses = source.parents.get(blocks[1])
    if isinstance(chooses, cst.Else):
        chooses = source.parents.get(chooses)
        if isinstance(chooses, cst.If) and chooses.body is blocks[0]:
            alone = len(blocks[0].body) == len(blocks[1].body) == 1
            return _Pair(assigns[0].value, assigns[1].value, chooses.test, (chooses,) if alone else ())
        return None
    if not isinstance(chooses, cst.If) or chooses.orelse is not None or source.in_block(chooses, blocks[0]) is None:
        return None
    if source.block(chooses) is not blocks[0]:
        return None
    made = (assigns[0], chooses) if len(blocks[1].body) == 1 else ()
    return _Pair(assigns[1].value, assigns[0].value, chooses.test, made)
