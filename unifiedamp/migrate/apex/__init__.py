"""Apex amp: ``initialize`` becomes a session and ``prepare``; the forward pass, which Apex patched, gets its region."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ..nodes import dotted
from ..sessions import free_name, share
from ..source import Source
from ..torch_amp import block_wrapped
from ..training.aliases import Aliases
from ..training.optional import refuse_left_out
from ..work import Work
from .again import again
from .available import answer
from .held import by_name, given, hand_on
from .initialize import Start, initialize
from .loop import rewrite_loops
from .older import block_older, note_older, older
from .registered import drop_registered
from .settings import HANDS, IN_LOOPS, NAME, OLD_IMPORTS, SAME, calls_of
from .starred import by_keyword


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return (
        any(meaning == "apex.amp" or meaning.startswith("apex.amp.") for meaning in source.imports.values())
        or any(isinstance(node, cst.Attribute) and source.meaning(node) == "apex.amp" for node in source.nodes)
        or any(True for _ in older(source))
    )


def plan(work: Work) -> None:
    """Work out the changes to a file.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    starts = calls_of(work.source, "initialize")
    if not starts:
        _without_start(work)
        return
    aliases = Aliases(work.source)
    takers = given(work.source, aliases) if work.names.amp == "amp" else set[cst.FunctionDef]()
    work.names = replace(work.names, amp=free_name(work.source, work.names.amp, takers))
    answer(work, takers)
    _read_scale(work)
    drop_registered(work)
    _refuse_unknown(work)
    block_older(work)
    block_wrapped(work)
    hand_on(work, aliases, takers)
    made: list[Start] = []
    sessions: dict[cst.CSTNode, str] = {}
    for call in starts:
        with work.blocking():
            made.append(initialize(work, call, starts, sessions))
    refuse_left_out(work, aliases, starts, calls_of(work.source, "scale_loss"))
    loops = rewrite_loops(work, aliases, made)
    for name in SAME:
        for call in calls_of(work.source, name):
            work.edits.expression(call.func, f"{work.names.amp}.{name}")
    _drop_globals(work)
    work.decide()
    users = [*calls_of(work.source, *IN_LOOPS), *loops.covered]
    making = [one for one in reversed(starts) if not again(work.source, one, starts)]
    for call in {work.source.scope(one): one for one in making}.values():  # one of each function
        share(work, call, [use for use in (*users, *starts) if work.source.scope(use) not in takers])


def _read_scale(work: Work) -> None:
    """``amp._amp_state.loss_scalers[0].loss_scale()`` is the scale."""
    for call in work.source.methods("loss_scale"):
        assert isinstance(call.func, cst.Attribute)
        scalers = call.func.value
        if (
            isinstance(scalers, cst.Subscript)
            and work.source.meaning(scalers.value) == "apex.amp._amp_state.loss_scalers"
        ):
            work.edits.expression(call, f"{work.names.amp}.loss_scale")


def _drop_globals(work: Work) -> None:
    """``global amp`` in the old code named the module."""
    for node in work.source.nodes:
        if isinstance(node, cst.Global) and [item.name.value for item in node.names] == [work.names.amp]:
            work.edits.statement(work.source.statement(node))


def _without_start(work: Work) -> None:
    write = "give this code the session (`amp`) that the file with amp.initialize makes, then write it by hand"
    for call in sorted(calls_of(work.source, *IN_LOOPS), key=work.source.line):
        work.note(call, f"{dotted(call.func)}() without amp.initialize", write)
    note_older(work)
    if not work.findings and work.source.methods("initialize"):
        hand_on(work, Aliases(work.source), ())


def _refuse_unknown(work: Work) -> None:
    """Refuse what the session has no call for."""
    source = work.source
    for node in source.nodes:
        meaning = source.meaning(node) if isinstance(node, cst.Attribute | cst.Name) else ""
        name = meaning.removeprefix("apex.amp.")
        if name == meaning or "." in name or isinstance(source.parents[node], cst.ImportAlias):
            continue
        if isinstance(node, cst.Name) and not source.is_reference(node):
            continue
        if name not in ("initialize", "init", *IN_LOOPS) and not work.edits.covers(source, node):
            work.block(node, f"amp.{name}", HANDS.get(name, "the session has no such call"))


__all__ = ["NAME", "OLD_IMPORTS", "by_keyword", "by_name", "found", "plan"]
