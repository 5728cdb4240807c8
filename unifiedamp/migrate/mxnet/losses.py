"""Whether a loss is one array or a list of them, one for each context: as far as the file shows."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted
from ..source import Source

_ITERATES = ("zip", "enumerate", "len", "list", "map")


def is_list(source: Source, loss: str, with_: cst.With) -> bool | None:
    """Return whether ``loss`` is a list where ``with_`` scales it; None where nothing in the function shows it."""
    scope = source.scope(with_)
    uses = [use for use in source.uses(loss) if source.scope(use) is scope]
    values = [a.value for a in source.assigns(loss) if source.scope(a) is scope]
    if any(isinstance(value, cst.ListComp | cst.List) for value in values) or _appended(source, loss, scope):
        return True
    if any(_iterated(source, use) for use in uses) or _backward_of_each(source, with_):
        return True
    if _comes_with_lists(source, loss, scope):
        return True
    if any(isinstance(value, cst.BinaryOperation) for value in values):
        return False
    methods = [source.parents[use] for use in uses]
    if any(isinstance(one, cst.Attribute) for one in methods):
        return False
    calls = [value for value in values if isinstance(value, cst.Call)]
    reduced = any(isinstance(c.func, cst.Attribute) and c.func.attr.value in ("mean", "sum") for c in calls)
    if reduced or (calls and (loss.endswith("ss") or not loss.endswith("s"))):
        return False
    return _backward_of_one(source, with_)


def _comes_with_lists(source: Source, loss: str, scope: cst.CSTNode) -> bool:
    """Whether a call made the loss out of lists, or beside lists: ``total, parts = criterion(outputs, labels)``."""
    for assign in source.assigned_in(scope):
        target = assign.targets[0].target
        parts = [e.value for e in target.elements] if isinstance(target, cst.Tuple) else [target]
        names = [dotted(part) for part in parts]
        if loss not in names or not isinstance(assign.value, cst.Call):
            continue
        given = [dotted(arg.value) for arg in assign.value.args]
        beside = [name for name in names if name != loss]
        if any(_is_gathered(source, name, scope) for name in given if name):
            return True
        if any(_iterated(source, use) for name in beside if name for use in source.uses(name)):
            return True
    return False


def _is_gathered(source: Source, name: str, scope: cst.CSTNode) -> bool:
    values = [a.value for a in source.assigns(name) if source.scope(a) is scope]
    split = [v for v in values if isinstance(v, cst.Call) and dotted(v.func).endswith("split_and_load")]
    return bool(split) or any(isinstance(v, cst.ListComp | cst.List) for v in values)


def _appended(source: Source, loss: str, scope: cst.CSTNode) -> bool:
    calls = [*source.methods("append"), *source.methods("extend")]
    return any(dotted(c.func).rpartition(".")[0] == loss and source.scope(c) is scope for c in calls)


def _iterated(source: Source, use: cst.BaseExpression) -> bool:
    parent = source.parents[use]
    if isinstance(parent, cst.For | cst.CompFor):
        return parent.iter is use
    call = source.parents.get(parent)
    return isinstance(parent, cst.Arg) and isinstance(call, cst.Call) and dotted(call.func) in _ITERATES


def _backward_of_each(source: Source, with_: cst.With) -> bool:
    return isinstance(with_.body.body[0], cst.For) and ".backward(" in source.code(with_.body)


def _backward_of_one(source: Source, with_: cst.With) -> bool | None:
    """``scaled_loss.backward()`` is of one array; ``autograd.backward`` takes both."""
    name = with_.items[0].asname
    scaled = dotted(name.name) if name is not None else ""
    one = any(dotted(c.func) == f"{scaled}.backward" for c in source.methods("backward") if source.inside(c, with_))
    return False if one else None
