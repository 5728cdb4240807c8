"""Each call on the ``GradScaler`` becomes the session's, or goes."""

from __future__ import annotations

import libcst as cst

from ..nodes import targets
from ..source import Statement
from ..training.dataflow import names_in
from ..training.loops import Loops
from ..work import Work
from .arguments import GETTERS
from .scale import Scaled, find_scaled, rewrite_scale
from .unscale import rewrite_unscale
from .uses import Use, Uses, optimizer_of, statement_of


def rewrite_calls(work: Work, uses: Uses, loops: Loops) -> None:
    """Rewrite all calls on the scaler; what the session has nothing for blocks.

    Args:
        work: takes the changes.
        uses: the calls.
        loops: the file's loops, which are told of the scaled losses and steps.
    """
    loops.steps += uses.of("step")
    sites = {}
    for use in uses.all:
        if use.method == "scale":
            with work.blocking():
                sites[use.call] = find_scaled(work, use)
    loops.sites += [scaled.site for scaled in sites.values()]
    loops.find_plain()
    for use in uses.all:
        with work.blocking():
            _rewrite(work, uses, loops, use, sites)


def _rewrite(work: Work, uses: Uses, loops: Loops, use: Use, sites: dict[cst.Call, Scaled]) -> None:
    match use.method:
        case "scale":
            if use.call in sites:
                rewrite_scale(work, loops, use, sites[use.call])
        case "unscale_":
            rewrite_unscale(work, loops, uses, use)
        case "step":
            work.edits.statement(statement_of(work, use.call), f"{use.amp}.step({optimizer_of(work, use.call)})")
        case "update":
            _update(work, use)
        case "get_scale":
            _get_scale(work, uses, use)
        case "state_dict" | "load_state_dict":
            pass  # the session's have the same names
        case method if method in GETTERS:
            work.edits.expression(use.call, f"{use.amp}.loss_scale_settings.{GETTERS[method]}")
        case method:
            raise work.stop(use.call, f"scaler.{method}()", "the session has no such call; see docs/migrate.md")


def _update(work: Work, use: Use) -> None:
    if use.call.args:
        raise work.stop(use.call, work.source.code(use.call), "the scale is moved by amp.step alone")
    work.edits.statement(statement_of(work, use.call))


def _get_scale(work: Work, uses: Uses, use: Use) -> None:
    """Rewrite a scale that is read; between step and update, where it still is the old one, before the step."""
    source = work.source
    statement = source.statement(use.call)
    block = source.block(statement)
    here = [(source.order[c], m, c) for c, m, _ in uses.all if m in ("step", "update") and source.in_block(c, block)]
    steps: list[cst.Call] = []
    for order, method, call in sorted(here, key=lambda one: one[0]):
        if order < source.order[use.call]:
            steps = [*steps, call] if method == "step" else []
    if not steps:
        work.edits.expression(use.call, f"{use.amp}.loss_scale")
        return
    first = source.in_block(steps[0], block)
    if first is None or not _moves_before(work, first, use.call):
        raise work.stop(use.call, "the scale is read between scaler.step and scaler.update",
                        "to learn whether a step was skipped, read `amp.step(optimizer).applied`")  # fmt: skip
    work.edits.statement(statement)
    work.edits.before(first, f"{targets(statement).pop()} = {use.amp}.loss_scale")


def _moves_before(work: Work, step: Statement, read: cst.Call) -> bool:
    """Whether ``scale = scaler.get_scale()`` may stand in front of a step: nothing in between uses the name."""
    source = work.source
    statement, behind = source.statement(read), source.after(step)
    names = targets(statement)
    if source.assignment(read) is None or len(names) != 1 or statement not in behind:
        return False
    between = [step, *behind[: behind.index(statement)]]
    return not any(names & names_in(source, one) for one in between)
