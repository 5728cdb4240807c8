"""Objects of other code that scale losses by themselves, as timm's ``NativeScaler`` and MAE's."""

from __future__ import annotations

import re

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work

_WRAPS = re.compile(r"(Native|Apex)Scaler\w*")
_WRITE = (
    "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`, "
    "`amp.clip_grad_norm(optimizer, n)` and `amp.step(optimizer)` where it is called"
)


def wrapped(source: Source, kind: str) -> list[cst.Call]:
    """Return the calls that make such an object, of a class which the file does not define.

    Args:
        source: the file.
        kind: "Native", around a GradScaler, or "Apex".
    """
    own = {one.name.value for one in source.of(cst.ClassDef)}
    found = []
    for call in source.of(cst.Call):
        match = _WRAPS.fullmatch(source.meaning(call.func).rpartition(".")[2])
        if match and match[1] == kind and dotted(call.func) not in own:
            found.append(call)
    return found


def note_wrapped(work: Work) -> None:
    """Say where an object around a GradScaler, made by other code, scales the losses."""
    for call in wrapped(work.source, "Native"):
        what = f"{work.source.code(call)} holds a GradScaler and scales losses by it, in code that is not here"
        work.note(call, what, f"it goes on working as it is; to use a session, write {_WRITE}")


def block_wrapped(work: Work) -> None:
    """Refuse where an object of other code scales the losses by Apex."""
    for call in wrapped(work.source, "Apex"):
        work.block(call, f"{work.source.code(call)} scales losses by Apex, in code that is not here", _WRITE)
