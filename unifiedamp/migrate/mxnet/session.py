"""``amp.init`` becomes the session's line, and ``amp.init_trainer`` its ``prepare``."""

from __future__ import annotations

import libcst as cst

from ..flags import WHEN
from ..nodes import argument, dotted, literal, walk
from ..sessions import prepare_in, session_line
from ..source import Source
from ..work import EXCHANGED, Work

_LISTS = ("target_precision_ops", "conditional_fp32_ops", "fp32_ops", "layout_optimization")
_PARAMS = ("params", "parameters")
_SESSION = '`amp = ua.Amp("mxnet", policy=...)`'
_PREPARE = "`net, trainer = amp.prepare(net, trainer)`"


def make_session(work: Work, call: cst.Call) -> None:
    """Replace a call of ``init`` by the session's line, and say what is left out.

    Raises:
        CannotMigrate: its result is used, or its dtype is not understood.
    """
    statement = work.alone(call, _SESSION)
    given = argument(call, "target_dtype", 0)
    dtype = literal(given)
    if given is not None and dtype not in ("float16", "bfloat16"):
        raise work.stop(call, work.source.code(call), _SESSION)
    for position, key in enumerate(_LISTS, 1):
        if argument(call, key, position) is not None:
            write = "op_overrides of the policy do it, in words of no one framework: see policies.md"
            work.note(call, f"{key}= was left out", write)
    policy = f'"mixed_{dtype or "float16"}"'
    # MXNet scales the loss under bfloat16 too; the session does when it is asked to.
    scale = '"dynamic"' if dtype == "bfloat16" else None
    when = argument(call, WHEN)
    if when is not None:
        code = work.source.code(when)
        flag = code if isinstance(when, cst.IfExp | cst.Lambda | cst.NamedExpr) else code[1:-1]
        policy = f'{policy} if {flag} else "float32"'
        scale = scale and f'{scale} if {flag} else "none"'
    line = session_line(work.names, work.names.amp, "mxnet", policy=policy, loss_scale=scale)
    work.edits.statement(statement, line)


def prepare(work: Work, call: cst.Call) -> str:
    """Replace a call of ``init_trainer`` by ``prepare``; return the trainer's name.

    Raises:
        CannotMigrate: no line of the function makes that trainer of a net's parameters.
    """
    source = work.source
    statement = work.alone(call, _PREPARE)
    given = argument(call, "optimizer_or_trainer", 0)
    trainer = dotted(given) if given is not None else ""
    assigns = [a for a in source.assigns(trainer) if source.scope(a) is source.scope(call)]
    models = [model for assign in assigns for model in _collected(source, assign.value)]
    if not trainer or not models:
        what = f"no line `{trainer or 'trainer'} = gluon.Trainer(net.collect_params(), ...)` here"
        raise work.stop(call, what, _PREPARE)
    for assign in assigns:
        made = source.meaning(assign.value.func) if isinstance(assign.value, cst.Call) else ""
        if made.rpartition(".")[2] in EXCHANGED:
            write = "gluon.Trainer with a kvstore, over which the workers of a session decide together"
            work.block(assign, f"{trainer} is made by {made}, which exchanges gradients by itself", write)
        elif made and not made.endswith("gluon.Trainer"):
            note = "a session prepares gluon.Trainers: see that this is one, or hand the gradients over by hand"
            work.note(assign, f"{trainer} is made by {made}", note)
    objects = [*dict.fromkeys(models), trainer]
    work.edits.statement(statement, prepare_in(source, source.scope(call), work.names.amp, objects))
    return trainer


def _collected(source: Source, value: cst.CSTNode, depth: int = 2) -> list[str]:
    """Return the models whose ``collect_params()`` an expression takes, through variables."""
    attributes = [n for n in walk(value) if isinstance(n, cst.Attribute)]
    owners = [n for n in attributes if n.attr.value.startswith("collect_") and n.attr.value.endswith(_PARAMS)]
    found = [name for name in (dotted(owner.value) for owner in owners) if name]
    for name in [n.value for n in walk(value) if isinstance(n, cst.Name)] if depth and not found else ():
        for assign in source.assigns(name):
            if source.scope(assign) is source.scope(value):
                found += _collected(source, assign.value, depth - 1)
    return found
