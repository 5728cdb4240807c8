"""Losses that no model was found for: what is said of them, and where."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work
from .aliases import Aliases, Key
from .clips import Site
from .reached import MODEL_WORDS
from .regions import Uncovered


def refuse(
    work: Work, aliases: Aliases, models: Collection[Key | None], site: Site, each: Uncovered, header: str
) -> None:
    """Refuse a loss where it is computed, or where a function is given it.

    Args:
        work: takes the reason.
        aliases: who is who.
        models: the groups of the models that are known.
        site: the backward pass.
        each: the loss.
        header: the region that it needs.
    """
    if each.function is not None:
        what, write = _given(work.source, each.function, ", ".join(each.given))
        work.block(each.function, what, f"compute it there in `{header}`{write}")
        return
    node = site.call if each.loss is site.loss else each.loss
    what = f"no call of the model was found that computes the loss {work.source.code(each.loss)}"
    called = _models_called(work.source, aliases, models, work.source.scope(node))
    if called:
        what += f"; {called[0]}, which is called there, is not known to be prepared"
    work.block(node, what, f"compute the loss in `{header}`, beside the model's call")


def _given(source: Source, function: cst.FunctionDef, given: str) -> tuple[str, str]:
    """Return why a function's loss cannot be followed, and what else to do."""
    said = f"{function.name.value} takes its loss from {given}"
    for arg in source.of(cst.Arg):
        root, _, name = dotted(arg.value).rpartition(".")
        if name == function.name.value and root in ("", "self"):
            return f"{said}, and is handed on in `{source.first_line(arg)}`, where it is not followed", ""
    return f"{said}, which code that is not here gives it", ", and migrate that file with this one"


def _models_called(source: Source, aliases: Aliases, models: Collection[Key | None], scope: cst.CSTNode) -> list[str]:
    """Return what a function calls that is a model by its name, and none that is known."""
    calls = [call for call in source.of(cst.Call) if source.scope(call) is scope]
    named = [call.func for call in calls if dotted(call.func).rpartition(".")[2] in MODEL_WORDS]
    return [dotted(one) for one in named if aliases.of(one) not in models]
