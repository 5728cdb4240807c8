"""MXNet's ``amp``: ``init`` becomes a session, ``init_trainer`` prepares, losses become means as ``step`` divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from ..sessions import free_name, share
from ..source import Source
from ..work import Work
from .flags import without_flags
from .limits import limits
from .loss import rewrite_loss
from .session import make_session, prepare
from .steps import rewrite_steps
from .words import CONVERT, KNOWN, NAME, OLD_IMPORTS, ROOTS, calls_of


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return any(meaning in ROOTS or meaning.rpartition(".")[0] in ROOTS for meaning in source.imports.values()) or any(
        source.meaning(node) in ROOTS for node in source.of(cst.Attribute)
    )


def plan(work: Work) -> None:
    """Work out the changes to a file.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    work.names = replace(work.names, amp=free_name(work.source, work.names.amp))
    starts, prepared, scales = (calls_of(work.source, name) for name in ("init", "init_trainer", "scale_loss"))
    _refuse_unknown(work)
    if len(starts) != 1:
        used = [*starts[1:], *scales, *prepared]
        if used:
            write = 'make one session, `amp = ua.Amp("mxnet", policy=...)`, and hand it to this code'
            work.block(used[0], f"amp.init is called {len(starts)} times in this file", write)
    elif not prepared:
        work.block(starts[0], "amp.init without amp.init_trainer in this file", "call amp.prepare(net, trainer)")
    elif not scales:
        write = "`with amp.scale_loss(loss, trainer) as scaled_loss:` in the training loop, in the file that has it"
        work.block(prepared[0], "amp.init_trainer without amp.scale_loss in this file", write)
    if len(starts) != 1 and not work.blockers:
        return
    _rewrite(work, starts, prepared, scales)
    work.blockers += limits(work.source, work.blockers) if work.blockers and not work.source.files else []
    work.decide()
    share(work, starts[0], [*prepared, *scales])


def _rewrite(work: Work, starts: Sequence[cst.Call], prepared: Sequence[cst.Call], scales: Sequence[cst.Call]) -> None:
    trainers: list[str] = []
    for start in starts:
        with work.blocking():
            make_session(work, start)
    for call in prepared:
        with work.blocking():
            trainers.append(prepare(work, call))
    for call in scales:
        with work.blocking():
            rewrite_loss(work, call)
    rewrite_steps(work, trainers)


def _refuse_unknown(work: Work) -> None:
    """Refuse what the session has no call for."""
    for node in work.source.of(cst.Call):
        root, _, name = work.source.meaning(node.func).rpartition(".")
        if root not in ROOTS or name in KNOWN:
            continue
        write = "see amp.convert_model and amp.inference" if name in CONVERT else "the session has no such call"
        work.block(node, f"amp.{name}", write)


__all__ = ["NAME", "OLD_IMPORTS", "found", "plan", "without_flags"]
