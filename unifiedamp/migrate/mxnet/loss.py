"""``amp.scale_loss``: the loss becomes the mean that ``trainer.step(batch_size)`` made of its gradients."""

from __future__ import annotations

import re

import libcst as cst

from ..nodes import argument, dotted, walk
from ..source import Source
from ..work import Work
from .losses import is_list
from .words import steps_of


def rewrite_loss(work: Work, call: cst.Call) -> cst.With:
    """Rewrite a call of ``scale_loss`` and its region; return its ``with`` statement.

    Raises:
        CannotMigrate: its loss, its region or its batch size is not understood.
    """
    source = work.source
    with_ = source.parents.get(source.parents[call])
    loss, trainer = argument(call, "loss", 0), argument(call, "optimizer_or_trainer", 1)
    if not isinstance(with_, cst.With) or loss is None or trainer is None or not dotted(loss):
        raise work.stop(call, source.code(call), "`with amp.scale_loss(loss, trainer) as scaled_loss:`")
    record = _record(work, with_, dotted(loss))
    size = _batch_size(work, source.code(trainer), call)
    mean = _mean_name(source)
    _check_body(work, with_)
    several = is_list(source, dotted(loss), with_)
    if several is None:
        what = f"whether {dotted(loss)} is one loss or a list of them cannot be seen"
        write = "`loss.sum() / batch_size` of one, `[each.sum() / batch_size for each in losses]` of a list"
        raise work.stop(call, what, write)
    header = f"with {work.names.amp}.scale_loss({mean}, {source.code(trainer)}) as scaled_loss:"
    work.edits.expression(record.items[0].item, f"{work.names.amp}.autocast()")
    divided = f"{mean} = {_mean(dotted(loss), size, several)}"
    _place(work, with_, record, divided, f"{header}\n    scaled_loss.backward()")
    return with_


def _place(work: Work, with_: cst.With, record: cst.With, divided: str, scaled: str) -> None:
    """Put the mean at the end of the region, and the scaled loss behind it."""
    if work.source.inside(with_, record):
        work.edits.statement(with_, divided)
        work.edits.after(record, scaled)
    else:
        work.edits.after(record.body.body[-1], divided)  # type: ignore[arg-type]  # a block's statement
        alone = next((one for one in work.source.above(with_) if _holds_alone(one, with_)), None)
        work.edits.statement(with_ if alone is None else alone, scaled)  # type: ignore[arg-type]  # a with statement


def _holds_alone(node: cst.CSTNode, with_: cst.With) -> bool:
    """Whether a region has nothing but the scaled backward pass in it: what it trains is computed elsewhere."""
    return isinstance(node, cst.With) and list(node.body.body) == [with_]


def _record(work: Work, with_: cst.With, loss: str) -> cst.With:
    """Return ``with autograd.record():`` in which a loss is computed."""
    source = work.source
    for node in reversed(source.of(cst.With)):
        if len(node.items) != 1 or source.scope(node) is not source.scope(with_):
            continue
        item = node.items[0].item
        records = isinstance(item, cst.Call) and source.meaning(item.func) == "mxnet.autograd.record"
        early = source.order[node] < source.order[with_] and not _holds_alone(node, with_)
        if records and early and loss in {dotted(n) for n in walk(node)}:
            if source.inside(with_, node) and node.body.body[-1] is not with_:
                raise work.stop(with_, "more follows in `with autograd.record():`", "move it behind the region")
            return node
    raise work.stop(with_, f"no `with autograd.record():` around the computation of {loss}",
                    "compute it in `with amp.autocast():`")  # fmt: skip


def _batch_size(work: Work, trainer: str, call: cst.Call) -> str:
    """Return the code of what the trainer's step beside a loss divides by."""
    steps = steps_of(work.source, trainer, call)
    size = work.source.code(steps[0].args[0].value) if steps else "1"
    if len({work.source.code(step) for step in steps}) != 1 or not _simple(size):
        raise work.stop(call, f"no single {trainer}.step(batch_size) beside this loss",
                        "divide the loss by the batch size in the region, and call `amp.step(trainer)`")  # fmt: skip
    return size


def _simple(code: str) -> bool:
    """Whether a batch size is a name, a number, a part of one, or the length of one."""
    code = code.removeprefix("len(").removesuffix(")")
    return code.replace(".", "").replace("_", "").replace("[", "").replace("]", "").isalnum()


def _mean_name(source: Source) -> str:
    return next(name for name in ("mean_loss", "mean_of_loss", "amp_loss") if name not in source.names())


def _mean(loss: str, size: str, several: bool) -> str:
    """Return the code of the loss divided as ``trainer.step(size)`` divided its gradients."""
    divided = "" if size == "1" else f" / {size}"
    return f"[each.sum(){divided} for each in {loss}]" if several else f"{loss}.sum(){divided}"


def _check_body(work: Work, with_: cst.With) -> None:
    body, name = with_.body.body, with_.items[0].asname
    handle = dotted(name.name) if name is not None else ""
    code = work.source.code(body[0]).strip() if len(body) == 1 else ""
    if re.fullmatch(rf"for (\w+) in {handle}:\s*\1\.backward\(\)", code):
        return
    if not code.replace(" ", "").endswith((".backward()", f"backward({handle})")):
        raise work.stop(with_, "more than backward() under amp.scale_loss", "move the rest behind it")
