"""Whether Apex is there: what old code asks at import is answered, since the session needs no Apex."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ..nodes import dotted
from ..work import Work
from .questions import answered, asked


def answer(work: Work, takers: Collection[cst.CSTNode]) -> None:
    """Answer ``amp is None``, ``if amp``, and the flags that an import of amp sets; not in ``takers``, which may be
    given a session or None.
    """
    for node in work.source.nodes:
        if isinstance(node, cst.Try):
            _import(work, node)
        elif (
            isinstance(node, cst.BaseExpression) and asked(work.source, node) and work.source.scope(node) not in takers
        ):
            meant = answered(work.source, node)
            if meant is not None:
                _question(work, node, meant)


def _import(work: Work, node: cst.Try) -> None:
    """``try: from apex import amp; HAS = True`` and ``except ImportError: HAS = False``."""
    body = [s for s in node.body.body if isinstance(s, cst.SimpleStatementLine)]
    small = [one for statement in body for one in statement.body]
    flags = [one for one in small if isinstance(one, cst.Assign) and dotted(one.value) == "True"]
    imports = [one for one in small if isinstance(one, cst.Import | cst.ImportFrom)]
    if not any(_is_amp(one) for one in imports):
        return
    nones = [one for h in node.handlers for one in _assigned_none(h)]
    names = [dotted(flag.targets[0].target) for flag in flags]
    if all(_is_amp(one) for one in imports) and len(flags) + len(imports) == len(small) == len(node.body.body):
        if flags or nones:
            work.edits.statement(node, *(f"{name} = True" for name in names))
    elif flags and all(map(_is_amp, imports)):
        what = f"{' and '.join(names)} said whether Apex is installed"
        work.note(node, what, "no Apex is imported there now: it is True wherever the rest of the try passes")
    elif flags:
        what = f"{' and '.join(names)} says whether Apex is installed, also for what is still imported from it"
        work.note(node, what, "the session needs no Apex: set the flag to True where only amp depends on it")


def _question(work: Work, node: cst.BaseExpression, meant: str) -> None:
    """Answer a question; an ``if amp is None`` that does nothing else goes."""
    around = work.source.parents[node]
    alone = isinstance(work.source.parents.get(around), cst.IndentedBlock | cst.Module)
    if meant == "False" and alone and isinstance(around, cst.If) and around.orelse is None:
        work.edits.statement(around)
    else:
        work.edits.expression(node, meant)


def _is_amp(node: cst.CSTNode) -> bool:
    """Whether an import imports ``apex.amp`` alone."""
    if isinstance(node, cst.ImportFrom) and node.module is not None and not isinstance(node.names, cst.ImportStar):
        return dotted(node.module) == "apex" and [alias.evaluated_name for alias in node.names] == ["amp"]
    return isinstance(node, cst.Import) and [alias.evaluated_name for alias in node.names] == ["apex.amp"]


def _assigned_none(handler: cst.ExceptHandler) -> list[cst.Assign]:
    lines = [s for s in handler.body.body if isinstance(s, cst.SimpleStatementLine)]
    return [s for line in lines for s in line.body if isinstance(s, cst.Assign)]
