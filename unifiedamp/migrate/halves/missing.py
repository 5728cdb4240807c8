"""What a file with half of a program lacks: model, optimizer and scaler that parameters of its functions bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ..apex.settings import IN_LOOPS, calls_of
from ..nodes import argument, dotted
from ..source import Source
from ..torch_amp import SCALERS
from ..torch_amp.prepare import model_groups
from ..training.aliases import Aliases, Key
from ..training.reached import MODEL_WORDS


@dataclass(frozen=True)
class Half:
    """What other files must hand over.

    Attributes:
        entries: the functions that other files call.
        scalers: the groups of scalers; none for Apex, whose module the functions import.
        optimizers: the groups of optimizers that losses are scaled for.
        models: the groups of models.
        losses: the groups of the losses that are scaled.
    """

    entries: Sequence[cst.FunctionDef]
    scalers: set[Key | None]
    optimizers: set[Key | None]
    models: set[Key | None]
    losses: set[Key | None]


def with_scaler(source: Source, aliases: Aliases) -> Half | None:
    """Return what a file lacks whose functions have a parameter for a ``GradScaler``."""
    scalers = {aliases.of(_receiver(call)) for call in source.scaled()}
    if not scalers or None in scalers or source.calls(*SCALERS):
        return None
    steps = [call for call in source.methods("step") if aliases.of(_receiver(call)) in scalers]
    optimizers = {aliases.of(call.args[0].value) for call in steps if len(call.args) == 1}
    entries = [f for f in _outermost(source) if given(aliases, f, scalers) and not aliases.reached.calls(f)]
    return _half(source, aliases, entries, scalers, optimizers, [one for one in source.methods("scale") if one.args])


def with_apex(source: Source, aliases: Aliases) -> Half | None:
    """Return what a file lacks that scales losses with Apex, which another file initializes."""
    uses = calls_of(source, *IN_LOOPS)
    if not uses or calls_of(source, "initialize") or not calls_of(source, "scale_loss"):
        return None
    entries = entries_of(source, aliases, uses)
    named = [argument(call, "optimizers", 1) for call in calls_of(source, "scale_loss")]
    optimizers = {aliases.of(one) for node in named if node is not None for one in _listed(node)}
    half = _half(source, aliases, entries, set(), optimizers, calls_of(source, "scale_loss"))
    return half if half is not None and half.models else None


def entries_of(source: Source, aliases: Aliases, uses: Sequence[cst.CSTNode]) -> list[cst.FunctionDef]:
    """Return the functions that other files call, around some nodes; none where a node is outside such functions, or in
    a method that a base class may call.
    """
    entries: list[cst.FunctionDef] = []
    seen: set[cst.CSTNode] = set()
    waiting: list[cst.CSTNode] = [*uses]
    while waiting:
        function = _around(source, waiting.pop())
        if function is None or _overrides(aliases, function):
            return []
        if function in seen:
            continue
        seen.add(function)
        callers = aliases.reached.calls(function)
        waiting += callers
        if not callers:
            entries.append(function)
    return sorted(entries, key=source.order.__getitem__)


def _half(
    source: Source,
    aliases: Aliases,
    entries: Sequence[cst.FunctionDef],
    scalers: set[Key | None],
    optimizers: set[Key | None],
    scaled: Sequence[cst.Call],
) -> Half | None:
    """Return what is missing if parameters of ``entries`` bring it all, but for the losses of ``scaled``."""
    if not entries or not optimizers or None in optimizers:
        return None
    bringing = with_inits(aliases, entries)
    brought = {aliases.group((entry, name)) for entry in bringing for name in _names(entry)}
    if not scalers <= brought or not optimizers <= brought:
        return None
    models = {group for group in model_groups(source, aliases) if group in brought}
    named = {(entry, name) for entry in bringing for name in _names(entry) if name.rpartition("_")[2] in MODEL_WORDS}
    models |= {aliases.group(key) for key in named}
    models -= scalers | optimizers
    losses = {aliases.of(_weighed(loss)) for call in scaled for loss in [argument(call, "loss", 0)] if loss is not None}
    return Half(entries, scalers, optimizers, models, (losses & brought) - models - scalers - optimizers)


def _weighed(loss: cst.BaseExpression) -> cst.BaseExpression:
    """Return the loss of ``loss / accumulated``."""
    while isinstance(loss, cst.BinaryOperation) and isinstance(loss.operator, cst.Divide | cst.Multiply):
        loss = loss.left
    return loss


def with_inits(aliases: Aliases, entries: Sequence[cst.FunctionDef]) -> list[cst.FunctionDef]:
    """Return functions, and what makes the objects whose methods they are."""
    inits = [init for entry in entries for init in [init_of(aliases, entry)] if init is not None]
    return list(dict.fromkeys([*entries, *inits]))


def init_of(aliases: Aliases, function: cst.FunctionDef) -> cst.FunctionDef | None:
    """Return the ``__init__`` of the class whose method a function is."""
    owner = aliases.scopes.class_of(function)
    body = owner.body.body if owner is not None else ()
    return next((one for one in body if isinstance(one, cst.FunctionDef) and one.name.value == "__init__"), None)


def _outermost(source: Source) -> Iterator[cst.FunctionDef]:
    """Yield the functions that other files can call: those of the file and of its classes."""
    for function in source.of(cst.FunctionDef):
        if not any(isinstance(above, cst.FunctionDef) for above in source.above(function)):
            yield function


def _around(source: Source, node: cst.CSTNode) -> cst.FunctionDef | None:
    found = [above for above in source.above(node) if isinstance(above, cst.FunctionDef)]
    return found[-1] if found else None


def _overrides(aliases: Aliases, function: cst.FunctionDef) -> bool:
    """Whether a method may be called by a base class, which passes no new argument."""
    owner = aliases.scopes.class_of(function)
    return owner is not None and any(dotted(base.value) != "object" for base in owner.bases)


def given(aliases: Aliases, function: cst.FunctionDef, groups: set[Key | None]) -> list[str]:
    """Return the parameters of a function that stand for objects of these groups."""
    return [name for name in _names(function) if aliases.group((function, name)) in groups]


def _names(function: cst.FunctionDef) -> list[str]:
    return [one.name.value for one in (*function.params.params, *function.params.kwonly_params)]


def _receiver(call: cst.Call) -> cst.BaseExpression:
    assert isinstance(call.func, cst.Attribute)
    return call.func.value


def _listed(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [one.value for one in node.elements] if isinstance(node, cst.List | cst.Tuple) else [node]
