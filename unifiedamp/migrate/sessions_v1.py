"""TensorFlow 1's session training with the graph rewrite: the one line becomes a context around graph and session."""

from __future__ import annotations

import re

import libcst as cst

from .edits import Edits
from .keras import rewrites, scale_of
from .report import Finding
from .sessions import Names, stop
from .source import Source, argument

NAME = "tf.compat.v1 graph rewrite"
OLD_IMPORTS: tuple[str, ...] = ()
NEEDS = ("from unifiedamp_tensorflow.v1 import SessionRewrite",)
_SESSION = re.compile(r"tensorflow\.(compat\.v1\.)?(Session|InteractiveSession)")


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return bool(rewrites(source)) and bool(_sessions(source))


def _sessions(source: Source) -> list[cst.Call]:
    return [n for n in source.nodes if isinstance(n, cst.Call) and _SESSION.fullmatch(source.meaning(n.func))]


def plan(source: Source, names: Names) -> tuple[Edits, list[Finding]]:
    """Return the changes to a file, and what is left to a person.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    edits = Edits()
    calls = rewrites(source)
    call, statement = calls[0], source.statement(calls[0])
    simple, inner = source.simple(call), argument(call, "opt", 0)
    if len(calls) > 1 or inner is None or not isinstance(simple, cst.Assign) or simple.value is not call:
        raise stop(source, calls[-1], source.code(calls[-1]), "`opt = rewrite.prepare(opt)`, once in a SessionRewrite")
    edits.expression(call, f"rewrite.prepare({source.code(inner)})")
    last = [statement, *source.after(statement)][-1]
    scale = scale_of(source, names, argument(call, "loss_scale", 1))
    edits.wrap(statement, last, f'with SessionRewrite("mixed_float16", loss_scale={scale}) as rewrite:')
    for session in _sessions(source):
        block = source.in_block(session, source.block(statement))
        if block is None or source.order[block] < source.order[statement] or argument(session, "config", 2) is not None:
            raise stop(source, session, source.code(session),
                       "make the session in the SessionRewrite, with config=rewrite.session_config()")  # fmt: skip
        given = [source.code(arg).rstrip(", ") for arg in session.args]
        arguments = ", ".join([*given, "config=rewrite.session_config()"])
        edits.expression(session, f"{source.code(session.func)}({arguments})")
    return edits, []
