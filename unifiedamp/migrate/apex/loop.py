"""Apex's training loop: scaled losses with the forward pass before them, clipping, and steps."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import argument, dotted, keywords, walk
from ..source import Source
from ..training.aliases import Aliases
from ..training.clips import CLIPS, Site
from ..training.loops import Loops, listed
from ..work import Work
from .initialize import Start
from .settings import calls_of, level_of


def rewrite_loops(work: Work, aliases: Aliases, starts: Sequence[Start]) -> Loops:
    """Rewrite all loops of the file and return them; what stands in the way is in ``work.blockers``.

    Args:
        work: takes the changes.
        aliases: who is who in the file.
        starts: the calls of ``initialize``.
    """
    amp = work.names.amp
    models = {aliases.of(one) for start in starts for one in start.models}
    optimizers = {aliases.of(one): work.source.code(one) for start in starts for one in start.optimizers}
    loops = Loops(work, aliases, models - {None}, {k: v for k, v in optimizers.items() if k}, lambda _: amp)
    loops.unscales = True
    levels = {level_of(work.source, call) for call in calls_of(work.source, "initialize")}
    loops.models_alone = levels <= {"O2", "O3"}
    for call in calls_of(work.source, "scale_loss"):
        with work.blocking():
            loops.sites.append(_site(work, loops, call))
    if len(starts) < len(calls_of(work.source, "initialize")):
        return loops  # said of initialize
    loops.find_plain()
    _master_params(work)
    loops.rewrite(lambda _: f"with {amp}.autocast():")
    return loops


def _site(work: Work, loops: Loops, call: cst.Call) -> Site:
    """Rewrite ``with amp.scale_loss(...)``.

    Raises:
        CannotMigrate: it is no ``with`` statement, or names no prepared optimizer.
    """
    source = work.source
    item = source.parents[call]
    with_ = source.parents.get(item)
    if not isinstance(item, cst.WithItem) or not isinstance(with_, cst.With):
        raise work.stop(call, "amp.scale_loss outside a with statement",
                        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")  # fmt: skip
    loss, optimizers = argument(call, "loss", 0), argument(call, "optimizers", 1)
    if loss is None or optimizers is None or keywords(call) & {"*"}:
        raise work.stop(call, source.code(call), "`amp.scale_loss(loss, optimizer)`")
    many = optimizers.elements if isinstance(optimizers, cst.List | cst.Tuple) else ()
    named = [one.value for one in many] or [optimizers]
    for one in named:
        if loops.optimizers and not loops.is_optimizer(one):
            work.block(call, f"{source.code(one)} is not known to be an optimizer passed to amp.initialize",
                       "scale the loss for the optimizers that `amp.prepare` returned")  # fmt: skip
    codes = [source.code(one) for one in named]
    _close_early(work, loops, with_)
    if item.asname is not None:
        _handle(work, with_, dotted(item.asname.name))
    work.edits.expression(call, f"{work.names.amp}.scale_loss({source.code(loss)}, {listed(codes)})")
    handle = dotted(item.asname.name) if item.asname is not None else ""
    return Site(call, loss, with_, codes, handle or "scaled_loss")


def _close_early(work: Work, loops: Loops, with_: cst.With) -> None:
    """Refuse steps and clipping inside: there the gradients are scaled still."""
    for node in walk(with_.body):
        if not isinstance(node, cst.Call):
            continue
        function = node.func
        step = isinstance(function, cst.Attribute) and function.attr.value == "step" and function.value
        clips = "clip_grad" in dotted(function)
        if clips and _ends(work.source, with_, node):
            code = " ".join(work.source.code(node).split())
            work.note(node, f"gradients were still scaled at `{code[:80]}`",
                      "now they are true ones there: look whether the limit was meant for those")  # fmt: skip
        elif clips or (step and loops.is_optimizer(step)):
            work.block(node, f"{work.source.code(node)} inside amp.scale_loss, where gradients are still scaled",
                       "move it behind the with statement")  # fmt: skip


def _handle(work: Work, with_: cst.With, name: str) -> None:
    """The handle's one method is ``backward``; everything else wants the number."""
    for use in walk(with_.body):
        if not isinstance(use, cst.Name) or use.value != name or not work.source.is_reference(use):
            continue
        attribute = work.source.parents[use]
        if isinstance(attribute, cst.Attribute) and attribute.attr.value == "backward":
            continue
        work.edits.expression(use, f"{name}.value")


def _master_params(work: Work) -> None:
    """``amp.master_params(optimizer)``: in torch's clipping, and elsewhere, the optimizer's parameters."""
    source = work.source
    for call in calls_of(source, "master_params"):
        if not call.args:
            work.block(call, source.code(call), "name the optimizer whose parameters are wanted")
            continue
        optimizer = source.code(call.args[0].value)
        group = f'for group in {optimizer}.param_groups for param in group["params"]'
        clip = source.parents.get(source.parents[call])
        if not (isinstance(clip, cst.Call) and dotted(clip.func).rpartition(".")[2] in CLIPS):
            work.edits.expression(call, f"[param {group}]")


def _ends(source: Source, with_: cst.With, call: cst.Call) -> bool:
    """Whether a call is a statement in a ``with``, and nothing but clipping comes behind it there."""
    if not source.is_alone(call) or not isinstance(with_.body, cst.IndentedBlock):
        return False
    statement = source.statement(call)
    rest = source.after(statement) if source.block(statement) is with_.body else []
    return source.block(statement) is with_.body and all("clip_grad" in source.code(one) for one in rest)
