"""Models stay in the dtype that they are prepared in: between steps nothing casts their parameters by hand."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..training.aliases import Key
from ..training.regions import prefixes
from ..training.values import peeled
from .facts import Facts, prepared_by

Problem = tuple[cst.CSTNode, str, str]
_DTYPES = {f"torch.{name}" for name in ("float16", "half", "bfloat16", "double", "float64")}
_WRITE = "no cast: the session casts; to save in another dtype, cast `copy.deepcopy(model)` or its state"


def recast(facts: Facts) -> Iterator[Problem]:
    """A prepared model is not cast before a step: ``amp.step`` finds other parameters than it prepared, and fails."""
    models = _prepared(facts)
    for method in ("half", "bfloat16", "double", "to", "type"):
        for call in facts.source.methods(method):
            if _casts(facts, call) and _is_prepared(facts, call, models) and _is_trained_after(facts, call):
                yield call, f"{facts.source.code(call)} casts a prepared model, which the next step refuses", _WRITE


def _prepared(facts: Facts) -> set[Key | None]:
    groups = {facts.aliases.of(one) for call in facts.calls("prepare") for one in prepared_by(call)}
    return groups - set(facts.optimizers) - {None}


def _casts(facts: Facts, call: cst.Call) -> bool:
    assert isinstance(call.func, cst.Attribute)
    if call.func.attr.value not in ("to", "type"):
        return not call.args
    return any(facts.source.meaning(arg.value) in _DTYPES for arg in call.args)


def _is_prepared(facts: Facts, call: cst.Call, models: set[Key | None]) -> bool:
    """Whether a call is a prepared model's, or a statement by itself and a part's: tensors are cast for their value."""
    assert isinstance(call.func, cst.Attribute)
    owner = call.func.value
    if any(facts.aliases.of(one) in models for one in peeled(owner)):
        return True
    return facts.source.is_alone(call) and any(facts.aliases.of(one) in models for one in prefixes(owner))


def _is_trained_after(facts: Facts, call: cst.Call, depth: int = 2) -> bool:
    """Whether the function, or one that calls it, prepares before a place and steps behind it, or in a loop around."""
    source, scope = facts.source, facts.source.scope(call)
    prepares = facts.in_scope(facts.calls("prepare"), scope)
    if prepares and all(source.order[one] > source.order[call] for one in prepares):
        return False
    loops = [one for one in source.above(call) if isinstance(one, cst.For | cst.While) and source.scope(one) is scope]
    for one in facts.in_scope(source.of(cst.Call), scope):
        if not _trains(facts, one):
            continue
        behind = source.order[one] > source.order[call] and not source.exclusive(one, call)
        if behind or any(source.inside(one, loop) for loop in loops):
            return True
    if not isinstance(scope, cst.FunctionDef) or not depth:
        return False
    return any(_is_trained_after(facts, caller, depth - 1) for caller in facts.aliases.reached.calls(scope))


def _trains(facts: Facts, call: cst.Call) -> bool:
    training = facts.calls("scale_loss", "step")
    functions = facts.aliases.reached.functions(call)
    return call in training or any(facts.source.inside(one, each) for each in functions for one in training)
