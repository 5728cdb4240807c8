"""TensorFlow 1's session training with the graph rewrite: the one line becomes a context around graph and session."""

from __future__ import annotations

import re

import libcst as cst

from .keras.scales import experimental_scale
from .keras.words import REWRITE, calls_of
from .nodes import argument
from .source import Source, Statement
from .work import Work

NAME = "tf.compat.v1 graph rewrite"
OLD_IMPORTS: tuple[str, ...] = ()
NEEDS = ("from unifiedamp_tensorflow.training.session_rewrite import SessionRewrite",)
_SESSION = re.compile(r"tensorflow\.(compat\.v1\.)?(Session|InteractiveSession)")


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return bool(calls_of(source, REWRITE)) and bool(calls_of(source, _SESSION))


def plan(work: Work) -> None:
    """Work out the changes to a file.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    source, edits, calls = work.source, work.edits, calls_of(work.source, REWRITE)
    call, statement, inner = calls[0], source.statement(calls[0]), argument(calls[0], "opt", 0)
    if len(calls) > 1 or inner is None or source.assignment(call) is None:
        raise work.stop(calls[-1], source.code(calls[-1]), "`opt = rewrite.prepare(opt)`, once in a SessionRewrite")
    edits.expression(call, f"rewrite.prepare({source.code(inner)})")
    last = [statement, *source.after(statement)][-1]
    edits.wrap(statement, last, f'with SessionRewrite("mixed_float16", loss_scale={_scale(work, call)}) as rewrite:')
    for session in calls_of(source, _SESSION):
        _configure(work, session, statement)


def _scale(work: Work, call: cst.Call) -> str:
    """Return the code of the loss scale that the graph rewrite was given."""
    scale = experimental_scale(work.source, work.names, argument(call, "loss_scale", 1))
    return scale if "(" in scale else f"{work.names.ua}.StaticLossScale({scale})"


def _configure(work: Work, session: cst.Call, statement: Statement) -> None:
    """Give a session of the block behind the rewrite its configuration."""
    source = work.source
    block = source.in_block(session, source.block(statement))
    if block is None or source.order[block] < source.order[statement] or argument(session, "config", 2) is not None:
        raise work.stop(session, source.code(session),
                        "make the session in the SessionRewrite, with config=rewrite.session_config()")  # fmt: skip
    given = [source.code(arg).rstrip(", ") for arg in session.args]
    arguments = ", ".join([*given, "config=rewrite.session_config()"])
    work.edits.expression(session, f"{source.code(session.func)}({arguments})")
