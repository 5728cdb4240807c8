"""``scaler.scale(loss).backward()`` becomes ``with amp.scale_loss(loss, optimizer) as scaled_loss:``."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted, keywords, literal
from ..source import Statement
from ..work import Work
from .uses import Use, Uses, optimizer_of


def rewrite_scale(work: Work, uses: Uses, use: Use) -> None:
    """Rewrite a call of ``scale`` and the backward pass that it is made for.

    Raises:
        CannotMigrate: it is made for something else, or no optimizer steps behind it.
    """
    source, call = work.source, use.call
    if len(call.args) != 1 or literal(call.args[0].value) is not None:
        raise work.stop(call, source.code(call), "`amp.scale_loss(loss, optimizer)` takes one scalar loss")
    loss = source.code(call.args[0].value)
    backward, name = _backward(work, call)
    if not source.is_alone(backward) or keywords(backward) - {"retain_graph"}:
        raise work.stop(call, source.code(source.simple(backward) or backward),
                        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")  # fmt: skip
    kept = ", ".join(source.code(arg).rstrip(", ") for arg in backward.args)
    statement = source.statement(backward)
    header = f"with {use.amp}.scale_loss({loss}, {_trained_by(work, uses, statement)}) as {name}:"
    work.edits.statement(statement, f"{header}\n    {name}.backward({kept})")


def _backward(work: Work, call: cst.Call) -> tuple[cst.Call, str]:
    """Return the backward call, and what the scaled loss is called."""
    source = work.source
    outer = source.parents[source.parents[call]]
    if isinstance(outer, cst.Call) and dotted(outer.func) == "" and source.code(outer.func).endswith(".backward"):
        return outer, "scaled_loss"
    return _scaled_apart(work, call)


def _scaled_apart(work: Work, call: cst.Call) -> tuple[cst.Call, str]:
    """Return the backward call of ``scaled = scaler.scale(loss)``, whose line goes."""
    source, assign = work.source, work.source.parents[call]
    name = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else ""
    uses = [use for use in source.uses(name) if source.scope(use) is source.scope(call)] if name else []
    if len(uses) != 2 or "." in name:
        raise work.stop(call, f"{source.code(call)} is used for more than backward()",
                        "the handle of `with amp.scale_loss(...)` has the scaled loss in `.value`")  # fmt: skip
    backward = source.parents.get(source.parents[uses[1]])
    if not isinstance(backward, cst.Call) or dotted(backward.func) != f"{name}.backward":
        raise work.stop(call, f"{name} is used for more than backward()", "use `scaled_loss.value`")
    work.edits.statement(source.statement(call))
    return backward, name


def _trained_by(work: Work, uses: Uses, statement: Statement) -> str:
    """Return the code of the optimizers whose steps come next after a backward pass."""
    if len(uses.optimizers) == 1:
        return uses.optimizers[0]
    found: list[str] = []
    place: Statement | None = statement
    while place is not None and not found:
        found = _steps_behind(work, uses, place)
        above = work.source.parents[work.source.block(place)]
        place = work.source.statement(above) if isinstance(above, Statement) else None
        if isinstance(above, cst.FunctionDef):
            break
    found = list(dict.fromkeys(found))
    if not found:
        write = "name the optimizers that the loss trains: `amp.scale_loss(loss, [first, second])`"
        raise work.stop(statement, "a backward pass with no scaler.step behind it", write)
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def _steps_behind(work: Work, uses: Uses, place: Statement) -> list[str]:
    """Return the optimizers that step behind ``place`` in its block, until another loss is scaled."""
    inside = work.source.inside
    found: list[str] = []
    for later in work.source.after(place):
        if found and any(inside(call, later) for call in uses.of("scale")):
            break
        found += [optimizer_of(work, call) for call in uses.of("step") if inside(call, later)]
    return found
