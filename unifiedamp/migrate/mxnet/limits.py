"""What no session takes over from an MXNet file: said beside other reasons to refuse it, so that all are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ..nodes import argument, dotted
from ..report import Finding
from ..source import Source
from ..work import EXCHANGED
from .words import calls_of

_SCALER = ("_amp_loss_scaler", "_amp_original_scale")


def limits(source: Source, found: Sequence[Finding]) -> list[Finding]:
    """Return reasons on lines that have none in ``found``."""
    known = {one.line for one in found}
    reasons = [(source.line(node), what, write) for node, what, write in (*_exchanged(source), *_steps(source))]
    reasons += [(line, what.partition(": ")[0], what.partition(": ")[2]) for line, what in scalers(source)]
    return [Finding(line, what, write, blocks=True) for line, what, write in sorted(set(reasons)) if line not in known]


def scalers(source: Source) -> Iterator[tuple[int, str]]:
    """Yield line and reason of each use of MXNet's own scaler."""
    for node in source.of(cst.Attribute):
        if node.attr.value in _SCALER:
            yield source.line(node), f"{dotted(node)} is MXNet's own scaler: give ua.Amp its loss_scale"


def _exchanged(source: Source) -> Iterator[tuple[cst.CSTNode, str, str]]:
    for call in source.of(cst.Call):
        name = source.meaning(call.func)
        if name.rpartition(".")[2] in EXCHANGED:
            write = "gluon.Trainer with a kvstore, over which the workers of a session decide together"
            yield call, f"{name} exchanges gradients by itself", write


def _steps(source: Source) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Steps in parts, and clipping of gradients that nothing unscales."""
    scaled = [argument(call, "optimizer_or_trainer", 1) for call in calls_of(source, "scale_loss")]
    trainers = {dotted(one) for one in scaled if one is not None}
    for call in (*source.methods("update"), *source.methods("allreduce_grads")):
        owner, _, name = dotted(call.func).rpartition(".")
        if owner in trainers:
            write = f"amp.step({owner}), which reduces and updates; ua.Amp(accumulate_steps=...) accumulates"
            yield call, f"{owner}.{name}() is a part of a step", write
    scopes = {source.scope(call) for call in calls_of(source, "scale_loss")}
    for clip in source.calls("mxnet.gluon.utils.clip_global_norm"):
        unscaled = [call for call in calls_of(source, "unscale") if source.scope(call) is source.scope(clip)]
        if source.scope(clip) in scopes and not unscaled:
            yield clip, "gradients are clipped while they are scaled", "`amp.clip_grad_norm(trainer, max_norm)`"
