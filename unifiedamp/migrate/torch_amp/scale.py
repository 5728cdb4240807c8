"""``scaler.scale(loss).backward()`` becomes ``with amp.scale_loss(loss, optimizer) as scaled_loss:``."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from ..nodes import dotted, keywords, literal
from ..training.clips import Site
from ..training.loops import Loops, listed
from ..work import Work
from .uses import Use


class Scaled(NamedTuple):
    """A scaled loss: its backward pass, that call, and what the handle is called."""

    site: Site
    backward: cst.Call
    name: str


def find_scaled(work: Work, use: Use) -> Scaled:
    """Return the backward pass that a call of ``scale`` is made for.

    Raises:
        CannotMigrate: it is made for something else.
    """
    source, call = work.source, use.call
    if len(call.args) != 1 or literal(call.args[0].value) is not None:
        raise work.stop(call, source.code(call), "`amp.scale_loss(loss, optimizer)` takes one scalar loss")
    backward, name = _backward(work, call)
    if not source.is_alone(backward) or keywords(backward) - {"retain_graph"}:
        raise work.stop(call, source.code(source.simple(backward) or backward),
                        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")  # fmt: skip
    site = Site(backward, call.args[0].value, source.statement(backward))
    return Scaled(site, backward, name)


def rewrite_scale(work: Work, loops: Loops, use: Use, scaled: Scaled) -> None:
    """Rewrite a scaled backward pass.

    Raises:
        CannotMigrate: no optimizer steps behind it.
    """
    source = work.source
    site, backward, name = scaled
    site.optimizers = loops.trained_by(site)
    if not site.optimizers and not loops.steps:
        return  # said of the scaler
    if not site.optimizers:
        write = "name the optimizers that the loss trains: `amp.scale_loss(loss, [first, second])`"
        raise work.stop(use.call, "a backward pass with no scaler.step behind it", write)
    kept = ", ".join(source.code(arg).rstrip(", ") for arg in backward.args)
    header = f"with {use.amp}.scale_loss({source.code(site.loss)}, {listed(site.optimizers)}) as {name}:"
    work.edits.statement(site.place, f"{header}\n    {name}.backward({kept})")


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
