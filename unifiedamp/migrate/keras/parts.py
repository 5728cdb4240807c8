"""Steps whose parts are in several functions: one takes gradients, another applies them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work

_WRITE = "let the session accumulate, ua.Amp(accumulate_steps=...), and write the loss and amp.step in one function"


def refuse_parts(work: Work, start: cst.Call) -> None:
    """Refuse a file in which no step was found that takes gradients and applies them, for the parts that it has.

    Args:
        work: takes the refusals.
        start: the call that turns mixed precision on.

    Raises:
        CannotMigrate: the file has no parts of a step either.
    """
    found = [*_taken(work.source), *_applied(work.source)]
    for call, what in found:
        work.block(call, what, _WRITE)
    if not found:
        what = "no loop over a GradientTape and no model.compile in this file"
        raise work.stop(start, what, "make the session where the model is trained")


def _taken(source: Source) -> Iterator[tuple[cst.Call, str]]:
    tapes = {dotted(item.asname.name) for with_ in source.of(cst.With) for item in with_.items if item.asname}
    for call in source.methods("gradient"):
        scope = source.scope(call)
        if dotted(call.func).rpartition(".")[0] in tapes and isinstance(scope, cst.FunctionDef):
            yield call, f"{scope.name.value} takes gradients, which other code applies"


def _applied(source: Source) -> Iterator[tuple[cst.Call, str]]:
    for call in source.methods("apply_gradients"):
        if call.args:  # else a method of this file, of that name
            given = source.code(call.args[0].value)
            yield call, f"{dotted(call.func)}({given}) applies gradients that other code takes"
