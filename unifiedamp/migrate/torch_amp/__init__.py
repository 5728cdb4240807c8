"""``torch.amp`` and ``torch.cuda.amp``: autocast regions and a ``GradScaler`` become one session."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work
from .calls import rewrite_calls
from .prepare import prepare
from .regions import leave, seen_regions
from .scaler import Scaler, find_scaler
from .session import make_session
from .uses import find_uses
from .words import AUTOCAST, CUSTOM, NAME, OLD_IMPORTS, SCALERS


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return bool(source.calls(*AUTOCAST, *SCALERS, *CUSTOM)) or any(
        isinstance(node, cst.Decorator) and source.meaning(node.decorator) in (*AUTOCAST, *CUSTOM)
        for node in source.nodes
    )


def plan(work: Work) -> None:
    """Work out the changes to a file.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    _note_custom(work)
    scalers = work.source.calls(*SCALERS)
    if not scalers:
        for call in work.source.calls(*AUTOCAST):
            leave(work, call, "autocast without a GradScaler made in this file")
        return
    scaler = find_scaler(work, scalers)
    regions = seen_regions(work, scaler)
    uses = find_uses(work, scaler)
    rewrite_calls(work, uses)
    prepare(work, scaler, uses)
    make_session(work, scaler, regions)
    _rename(work, scaler)


def _note_custom(work: Work) -> None:
    for node in work.source.nodes:
        if isinstance(node, cst.Decorator):
            called = node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator
            if work.source.meaning(called) in CUSTOM:
                write = "it works as it is; for every framework, decorate the function with `ua.amp_function`"
                work.note(node, dotted(called), write)


def _rename(work: Work, scaler: Scaler) -> None:
    """Call the session by its name wherever the scaler is still named."""
    for old, new in scaler.names.items():
        for use in work.source.uses(old):
            if not work.edits.covers(work.source, use):
                work.edits.expression(use, new)
        for node in work.source.nodes:
            if isinstance(node, cst.Param) and node.name.value == old:
                work.edits.change(node, lambda param: param.with_changes(name=cst.Name(work.names.amp)))


__all__ = ["NAME", "OLD_IMPORTS", "found", "plan"]
