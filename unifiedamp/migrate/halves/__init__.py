"""Half of a program: functions that train with a scaler, or with Apex, that other files make.

The file is read together with a caller that makes model, optimizer and scaler and hands them over. What becomes of the
caller is thrown away: the file's functions take the session that their real callers make.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from ..planning import check_result
from ..report import CannotMigrate, Finding, Migration
from ..source import Source
from ..together import joined, rewritten
from ..training.aliases import Aliases
from .caller import CALLER, HALF, caller_of
from .gluon import migrate_gluon_half
from .inherited import migrate_inherited
from .missing import Half, given, with_apex, with_scaler

_HALF, _CALLER = f"{HALF}.py", f"{CALLER}.py"


def migrate_half(path: str, content: bytes, source: Source) -> Migration | None:
    """Migrate functions that train for other files; return None where the file has none, or all of a program.

    Args:
        path: what messages call the file.
        content: its bytes.
        source: the file.
    """
    aliases = Aliases(source)
    half = with_scaler(source, aliases) or with_apex(source, aliases)
    if half is None:
        return migrate_inherited(path, content, source, aliases)
    caller = Source(caller_of(aliases, half).encode())
    program = joined({_HALF: source, _CALLER: caller})
    try:
        after, findings, apis = rewritten(program)
    except CannotMigrate as error:
        return Migration(path, content, content, (), tuple(_here(source, half, error.findings)))
    if any(found.blocks for found in findings) or after[_HALF] == content:
        return Migration(path, content, content, (), tuple(_here(source, half, findings)))
    check_result(path, content, after[_HALF])
    own = [replace(found, path="") for found in findings if found.path == _HALF]
    notes = [_note(aliases, source, half, entry, after[_CALLER].decode()) for entry in half.entries]
    return Migration(path, content, after[_HALF], apis, tuple(sorted({*own, *notes})))


def _here(source: Source, half: Half, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the lines of the file; what is said of the caller stands at the function it calls."""
    line = source.line(half.entries[0])
    own = {replace(found, path="") if found.path == _HALF else replace(found, path="", line=line)
           for found in findings if found.blocks or found.path == _HALF}  # fmt: skip
    return sorted(own)


def _note(aliases: Aliases, source: Source, half: Half, entry: cst.FunctionDef, caller: str) -> Finding:
    """Return what the callers of a function must do from now on."""
    name = _called(source, entry)
    made = next(line for line in caller.splitlines() if ".Amp(" in line)
    amp = made.partition(" ")[0]
    instead = f"{name} takes a session, {amp}, " + ("in place of the scaler" if half.scalers else "as a new argument")
    write = (
        f'where it is called: `{made}`, with policy="float32" where AMP is off; prepare model and optimizer '
        f"with `{amp}.prepare(model, optimizer)`, and pass {amp}"
    )
    losses = ", ".join(given(aliases, entry, half.losses))
    if losses:
        write += f"; compute {losses} in `with {amp}.autocast():`"
    return Finding(source.line(entry), instead, write)


def _called(source: Source, function: cst.FunctionDef) -> str:
    owner = next((one for one in source.above(function) if isinstance(one, cst.ClassDef)), None)
    if owner is None:
        return function.name.value
    return owner.name.value if function.name.value == "__init__" else f"{owner.name.value}.{function.name.value}"


__all__ = ["migrate_gluon_half", "migrate_half"]
