"""``trainer.step(batch_size)`` and ``amp.unscale``, with clipping between them: the session's steps."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted, literal
from ..source import Source, Statement
from ..work import Work
from .words import calls_of, steps_of


def rewrite_steps(work: Work, trainers: Sequence[str]) -> None:
    """Rewrite the steps of all trainers whose losses are scaled, and each call of ``unscale``.

    A step whose result is used blocks, and clipping of other gradients than the trainer's.
    """
    source, scaled = work.source, calls_of(work.source, "scale_loss")
    names = dict.fromkeys([*trainers, *(source.code(call.args[1].value) for call in scaled if len(call.args) > 1)])
    for name in names:
        for step in [step for call in scaled for step in steps_of(source, name, call)]:
            if source.statement(step) not in work.edits.lines:
                with work.blocking():
                    work.edits.statement(work.alone(step, "`amp.step(trainer)`"), f"{work.names.amp}.step({name})")
                    _note_overwritten(work, step, scaled)
    for call in calls_of(source, "unscale"):
        with work.blocking():
            _unscale(work, call)


def _note_overwritten(work: Work, step: cst.Call, scaled: Sequence[cst.Call]) -> None:
    """Say where a step that counts batches applied the last batch's gradients: gluon overwrites them by default."""
    source = work.source
    for test in (one for one in source.above(step) if isinstance(one, cst.If)):
        counts = "%" in source.code(test.test) and not any(source.inside(call, test) for call in scaled)
        if counts and "grad_req" not in source.module.code:
            what = f'{source.code(step)} applied the gradients of the last batch alone: grad_req is "write"'
            write = "the session adds up those of all batches since its last step: step after each, or divide the loss"
            work.note(step, what, write)
            return


def _unscale(work: Work, call: cst.Call) -> None:
    source, amp = work.source, work.names.amp
    statement, trainer = work.alone(call, "`amp.unscale(trainer)`"), source.code(call.args[0].value)
    sizes = {source.code(step.args[0].value) for step in steps_of(source, trainer, call)}
    for clip in source.calls("mxnet.gluon.utils.clip_global_norm"):
        if source.scope(clip) is not source.scope(call) or len(clip.args) < 2:
            continue
        place = _clip_place(work, clip)
        if not place or len(sizes) != 1:
            write = f"`{amp}.clip_grad_norm({trainer}, max_norm)`, of the gradients of the mean loss"
            raise work.stop(clip, source.code(clip), write)
        size = sizes.pop()
        code = f"{amp}.clip_grad_norm({trainer}, {_divided(source, clip.args[1].value, size)})"
        work.edits.statement(statement)
        work.edits.statement(place[0], _with_result(work, clip, place, code, size))
        for gone in place[1:]:
            work.edits.statement(gone)
        return
    work.edits.statement(statement, f"{amp}.unscale({trainer})")
    write = "these gradients are of the mean loss: trainer.step divided by the batch size only afterwards"
    work.note(call, "amp.unscale", write)


def _with_result(work: Work, clip: cst.Call, place: Sequence[Statement], code: str, size: str) -> str:
    """Return the statement that clips, and keeps the norm under its name: that of the summed gradients, as before.

    Raises:
        CannotMigrate: the norm is used otherwise.
    """
    source = work.source
    if source.is_alone(clip):
        return code
    assign = source.assignment(clip)
    if assign is None or source.statement(clip) is not place[0]:
        write = f"`{code}`, whose norm is that of the gradients of the mean loss"
        raise work.stop(clip, f"the result of {source.code(clip)} is used", write)
    times = "" if size == "1" else f" * {size}"
    return f"{''.join(source.code(target) for target in assign.targets).strip()} {code}{times}"


def _clip_place(work: Work, clip: cst.Call) -> list[Statement]:
    """Return the statements that clip the gradients of a Trainer's parameters, first the one to replace."""
    source = work.source
    grads, statement = dotted(clip.args[0].value), source.statement(clip)
    gathered = [a for a in source.assigns(grads) if source.block(a) is source.block(statement)]
    if len(gathered) != 1 or ".grad(" not in source.code(gathered[0].value):
        return []
    block = source.block(statement)
    loop = source.parents.get(block)
    if isinstance(loop, cst.For) and len(block.body) == 2:
        note = "clipped once, after the sum over devices, where each device's gradients were clipped before it"
        work.note(clip, "clip_global_norm in a loop over devices", note)
        return [loop]
    return [statement, source.statement(gathered[0])]


def _divided(source: Source, limit: cst.BaseExpression, size: str) -> str:
    """Return the code of ``limit / size``."""
    if isinstance(limit, cst.BinaryOperation) and isinstance(limit.operator, cst.Multiply):
        left, right = source.code(limit.left), source.code(limit.right)
        if size in (left, right):
            return right if left == size else left
    code = source.code(limit)
    if size == "1":
        return code
    return f"{code} / {size}" if dotted(limit) or literal(limit) is not None else f"({code}) / {size}"
