"""``amp.initialize`` becomes the session's line and ``prepare``."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, walk
from ..sessions import prepare_line, session_line
from ..work import Work
from .settings import settings

_LISTS = ("models", "optimizers", "nets", "networks", "opts")


def initialize(work: Work, call: cst.Call) -> list[str]:
    """Rewrite a call of ``initialize``; return the models' names, before it and after it.

    Raises:
        CannotMigrate: its models or optimizers have no names, or its result is used otherwise.
    """
    source, amp = work.source, work.names.amp
    models = _objects(work, call, argument(call, "models", 0))
    optimizers = _objects(work, call, argument(call, "optimizers", 1))
    line = session_line(work.names, amp, "torch", **settings(work, call))
    statement, simple = source.statement(call), source.simple(call)
    assign = source.assignment(call)
    if assign is not None and len(assign.targets) == 1:
        given = _given(assign)
        if len(given) != len(models) + len(optimizers):
            raise work.stop(call, "amp.initialize with other results than it has arguments", "call amp.prepare")
        work.edits.statement(statement, line, _prepare(amp, given, models, optimizers))
        return [*models, *given[: len(models)]]
    if not isinstance(simple, cst.Return) or simple.value is not call:
        raise work.stop(call, "amp.initialize inside an expression", "assign its result in a line of its own")
    work.edits.statement(statement, line, f"return {amp}.prepare({', '.join([*models, *optimizers])})")
    return models


def _given(assign: cst.Assign) -> list[str]:
    """Return the names that an assignment gives."""
    names = [name for name in map(dotted, walk(assign.targets[0].target)) if name]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def _prepare(amp: str, given: list[str], models: list[str], optimizers: list[str]) -> str:
    if given == [*models, *optimizers]:
        return prepare_line(amp, models, optimizers)
    return f"{', '.join(given)} = {amp}.prepare({', '.join([*models, *optimizers])})"


def _objects(work: Work, call: cst.Call, given: cst.BaseExpression | None) -> list[str]:
    """Return the names of the models or optimizers that ``initialize`` was given."""
    if given is None or dotted(given) == "None":
        return []
    parts = [given]
    if isinstance(given, cst.List | cst.Tuple):
        parts = [element.value for element in given.elements]
    elif dotted(given).rpartition(".")[2] in _LISTS:
        raise work.stop(
            call, f"amp.initialize of a list in {dotted(given)}",
            "make the session with `ua.Amp(...)` and call `amp.prepare(*models, *optimizers)`",
        )  # fmt: skip
    names = [dotted(part) for part in parts]
    if not all(names):
        raise work.stop(
            call, "amp.initialize of an expression",
            "assign models and optimizers to names before, and run migrate again",
        )  # fmt: skip
    return names
