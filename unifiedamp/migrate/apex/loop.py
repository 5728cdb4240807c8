"""Apex's training loop: scaled losses with the forward pass before them, clipping, and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from ..forward import calls_one, wrap_forward
from ..nodes import argument, dotted, keywords, walk
from ..work import Work
from .words import CLIP, calls_of


class Scaled(NamedTuple):
    """``with amp.scale_loss(loss, optimizers)``: the statement, its item and the call in that."""

    with_: cst.With
    item: cst.WithItem
    call: cst.Call


def rewrite_loops(work: Work, models: Sequence[str]) -> None:
    """Rewrite all loops of the file.

    Args:
        work: takes the changes.
        models: the names of what ``initialize`` made ready.

    Raises:
        CannotMigrate: a loss is scaled outside a ``with``, or computed elsewhere.
    """
    scaled = [_scaled(work, call) for call in calls_of(work.source, "scale_loss")]
    ends = [each.with_ for each in scaled]
    for each in scaled:
        _scale_loss(work, each, models, ends)
    _clip(work)
    _steps(work, scaled)


def _scaled(work: Work, call: cst.Call) -> Scaled:
    item = work.source.parents[call]
    with_ = work.source.parents.get(item)
    if not isinstance(item, cst.WithItem) or not isinstance(with_, cst.With):
        raise work.stop(call, "amp.scale_loss outside a with statement",
                        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")  # fmt: skip
    return Scaled(with_, item, call)


def _scale_loss(work: Work, scaled: Scaled, models: Sequence[str], ends: Sequence[cst.With]) -> None:
    source, call = work.source, scaled.call
    loss, optimizers = argument(call, "loss", 0), argument(call, "optimizers", 1)
    if loss is None or optimizers is None or keywords(call) & {"*"}:
        raise work.stop(call, source.code(call), "`amp.scale_loss(loss, optimizer)`")
    work.edits.expression(call, f"{work.names.amp}.scale_loss({source.code(loss)}, {source.code(optimizers)})")
    if scaled.item.asname is not None:
        _handle(work, scaled.with_, dotted(scaled.item.asname.name))
    _forward(work, call, loss, models, ends)


def _handle(work: Work, with_: cst.With, name: str) -> None:
    """The handle's one method is ``backward``; everything else wants the number."""
    for use in work.source.uses(name):
        if not work.source.inside(use, with_.body):
            continue
        attribute = work.source.parents[use]
        if isinstance(attribute, cst.Attribute) and attribute.attr.value == "backward":
            continue
        work.edits.expression(use, f"{name}.value")


def _forward(
    work: Work, call: cst.Call, loss: cst.BaseExpression, models: Sequence[str], ends: Sequence[cst.With]
) -> None:
    """Put what computes the loss in a region; the next loss's ends there."""
    source = work.source
    names = [n.value for n in walk(loss) if isinstance(n, cst.Name) and source.is_reference(n)]
    header = f"with {work.names.amp}.autocast():"
    wrapped = [wrap_forward(source, work.edits, name, call, models, header, ends) for name in dict.fromkeys(names)]
    if not any(wrapped) or calls_one(loss, models):
        raise work.stop(call, f"the loss {source.code(loss)} is not assigned in this function",
                        f"compute it in `{header}`")  # fmt: skip


def _clip(work: Work) -> None:
    """``amp.master_params(optimizer)``: in torch's clipping, and elsewhere."""
    source, amp = work.source, work.names.amp
    for call in calls_of(source, "master_params"):
        if not call.args:
            raise work.stop(call, source.code(call), "name the optimizer whose parameters are wanted")
        optimizer = source.code(call.args[0].value)
        clip = source.parents.get(source.parents[call])
        clips = isinstance(clip, cst.Call) and source.meaning(clip.func) == CLIP and clip.args[0].value is call
        if isinstance(clip, cst.Call) and clips and len(clip.args) == 2:
            limit = source.code(clip.args[1].value)
            work.edits.expression(clip, f"{amp}.clip_grad_norm({optimizer}, {limit})")
        else:
            work.edits.before(source.statement(call), f"{amp}.unscale({optimizer})")
            group = f'for group in {optimizer}.param_groups for param in group["params"]'
            work.edits.expression(call, f"[param {group}]")


def _steps(work: Work, scaled: Sequence[Scaled]) -> None:
    """``optimizer.step()`` where its losses are scaled."""
    source = work.source
    for call in source.methods("step"):
        assert isinstance(call.func, cst.Attribute)
        optimizer = dotted(call.func.value)
        if not optimizer or not any(_trains(work, each, optimizer, call) for each in scaled):
            continue
        if call.args or not source.is_alone(call):
            raise work.stop(call, source.code(call), "`amp.step(optimizer)`, which takes no closure")
        work.edits.statement(source.statement(call), f"{work.names.amp}.step({optimizer})")


def _trains(work: Work, scaled: Scaled, optimizer: str, step: cst.Call) -> bool:
    named = argument(scaled.call, "optimizers", 1)
    same = work.source.scope(scaled.with_) is work.source.scope(step)
    return same and named is not None and any(dotted(part) == optimizer for part in walk(named))
