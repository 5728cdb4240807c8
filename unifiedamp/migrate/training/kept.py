"""Gradients that old code reads behind a step, as for histograms: they are kept before the session's clears them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ..nodes import dotted, walk
from ..source import Source
from .clips import EMPTIES, Steps

_NAME = "gradients"
_LISTS = ("parameters", "named_parameters")
_PASSED = (cst.For, cst.While, cst.With, cst.IndentedBlock)


class _Loop(NamedTuple):
    """A loop over a model's parameters: the reads of gradients in it, each with its variable, and the model's code."""

    node: cst.For
    reads: list[cst.Attribute]
    model: str


def keep_gradients(loops: Steps) -> None:
    """Keep the gradients of each model that a loop behind the one step of its function reads."""
    work, source = loops.work, loops.work.source
    if _NAME in source.names() or len(loops.optimizers) != len(set(loops.optimizers.values())) == 1:
        return
    for step in (*loops.steps, *loops.plain_steps):
        scope = source.scope(step)
        steps = [one for one in (*loops.steps, *loops.plain_steps) if source.scope(one) is scope]
        found = [one for one in _loops(loops, scope) if _is_behind(source, one.node, step)]
        if len(steps) > 1 or len(found) != 1 or not _is_all(source, found[0].reads, step):
            continue
        amp, optimizer = loops.session_at(step), loops.code_of_step(step)
        kept = f"{_NAME} = {{param: param.grad for param in {found[0].model}.parameters()}}"
        work.edits.before(source.statement(step), f"{amp}.unscale({optimizer})\n{kept}")
        for read in found[0].reads:
            work.edits.expression(read, f"{_NAME}[{source.code(read.value)}]")


def _loops(loops: Steps, scope: cst.CSTNode) -> Iterator[_Loop]:
    """Yield the loops of a function over parameters of its models in which gradients are read."""
    source = loops.work.source
    for node in source.of(cst.For):
        over = node.iter.func if isinstance(node.iter, cst.Call) else None
        if source.scope(node) is not scope or not isinstance(over, cst.Attribute) or over.attr.value not in _LISTS:
            continue
        names = {dotted(one) for one in walk(node.target) if isinstance(one, cst.Name)}
        reads = [one for one in walk(node.body) if isinstance(one, cst.Attribute) and one.attr.value == "grad"]
        mine = [one for one in reads if dotted(one.value) in names]
        owner = over.value
        if isinstance(owner, cst.Attribute) and owner.attr.value == "module":
            owner = owner.value
        if mine and len(mine) == len(reads) and loops.aliases.of(owner) in loops.models:
            yield _Loop(node, mine, source.code(over.value))


def _is_behind(source: Source, loop: cst.For, step: cst.Call) -> bool:
    """Whether a step is taken before a loop, whatever happens, and nothing empties the gradients in between."""
    order = source.order
    if order[loop] < order[step] or source.inside(step, loop):
        return False
    for above in source.above(source.statement(step)):
        if isinstance(above, cst.IndentedBlock | cst.Module) and source.in_block(loop, above) is not None:
            return not any(order[step] < order[one] < order[loop] for one in source.methods("zero_grad"))
        if not isinstance(above, _PASSED):
            return False
    return False


def _is_all(source: Source, reads: list[cst.Attribute], step: cst.Call) -> bool:
    """Whether a function looks at no other gradients behind a step, and changes none: else the file is refused."""
    order, scope = source.order, source.scope(step)
    every = [one for one in source.of(cst.Attribute) if one.attr.value == "grad" and source.scope(one) is scope]
    behind = [one for one in every if order[one] > order[step] and not dotted(one).endswith("autograd.grad")]
    return all(one in reads and _is_read(source, one) for one in behind)


def _is_read(source: Source, read: cst.Attribute) -> bool:
    """Whether a gradient is neither assigned nor changed in place."""
    around = source.parents[read]
    if isinstance(around, cst.Attribute):
        name = around.attr.value
        call = source.parents[around]
        return name not in EMPTIES and not (name.endswith("_") and isinstance(call, cst.Call)) and name != "zero_"
    return not isinstance(around, cst.AssignTarget | cst.AugAssign | cst.Del)
