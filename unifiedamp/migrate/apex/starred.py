"""Apex's settings kept in a dict, ``amp.initialize(model, optimizer, **amp_args)``: they are named in the call."""

from __future__ import annotations

import libcst as cst

from ..edits import Edits
from ..nodes import dotted, literal
from ..report import Finding
from ..source import Source
from .settings import NO_MEANING, calls_of

_LEFT_OUT = (*NO_MEANING, "verbosity")


def by_keyword(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which ``amp.initialize`` is given by keyword what it was given in a dict of the function."""
    edits = Edits()
    for call in calls_of(source, "initialize"):
        starred = [arg for arg in call.args if arg.star == "**"]
        settings = _settings(source, call, starred[0].value) if len(starred) == 1 else None
        if settings is not None:
            given = [source.code(arg).rstrip().rstrip(",") for arg in call.args if arg is not starred[0]]
            named = [f"{key}={value}" for key, value in settings.items()]
            edits.expression(call, f"{source.code(call.func)}({', '.join([*given, *named])})")
    return edits.apply(source.module).bytes if edits else source.text, []


def _settings(source: Source, call: cst.Call, given: cst.BaseExpression) -> dict[str, str] | None:
    """Return the code of a dict's values, by key; None where something else may happen to it."""
    name, scope = dotted(given), source.scope(call)
    made = [one for one in source.assigns(name) if source.scope(one) is scope]
    settings = _items(source, made[0].value) if name and len(made) == 1 and len(made[0].targets) == 1 else None
    for use in source.uses(name) if settings is not None else ():
        parent = source.parents[use]
        if use is given or parent is made[0].targets[0]:
            continue
        if not isinstance(parent, cst.Subscript) or _key(parent) not in _LEFT_OUT:
            return None
    return settings


def _items(source: Source, value: cst.BaseExpression) -> dict[str, str] | None:
    """Return the code of the values of ``dict(a=1)`` or ``{"a": 1}``, which can be asked again behind it."""
    pairs: list[tuple[object, cst.BaseExpression]]
    if isinstance(value, cst.Dict):
        pairs = [(literal(one.key), one.value) for one in value.elements if isinstance(one, cst.DictElement)]
        whole = len(pairs) == len(value.elements)
    elif isinstance(value, cst.Call) and dotted(value.func) == "dict":
        pairs = [(arg.keyword.value, arg.value) for arg in value.args if arg.keyword is not None]
        whole = len(pairs) == len(value.args)
    else:
        return None
    known = {key: source.code(one).strip() for key, one in pairs if isinstance(key, str)}
    plain = all(dotted(one) or isinstance(one, cst.SimpleString | cst.Integer | cst.Float) for _, one in pairs)
    return known if whole and plain and len(known) == len(pairs) else None


def _key(item: cst.Subscript) -> object:
    index = item.slice[0].slice
    return literal(index.value) if isinstance(index, cst.Index) else None
