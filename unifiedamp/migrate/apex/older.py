"""What Apex had before ``amp.initialize``: named by line, since a session is set up otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..work import Work

_OLDER = re.compile(r"apex\.(fp16_utils(\.\w+)*\.\w+|(contrib\.)?optimizers(\.\w+)*\.FP16_Optimizer|amp\.(amp\.)?init)")
_MODULE = re.compile(r"apex\.fp16_utils(\.\w+)?")
_NAMES = {
    "FP16_Optimizer", "FP16Model", "network_to_half", "convert_network", "BN_convert_float", "prep_param_lists",
    "model_grads_to_master_grads", "master_params_to_model_params", "clip_grad_norm", "DynamicLossScaler",
}  # fmt: skip
_WRITE = (
    '`amp = ua.Amp("torch", policy="O2")`, `model, optimizer = amp.prepare(model, optimizer)` of the model in '
    "float32, `with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()` and `amp.step(optimizer)`"
)


def older(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the calls of Apex's older interfaces, ``FP16_Optimizer``, ``fp16_utils`` and ``amp.init``, with what is
    said of each; names that ``from apex.fp16_utils import *`` brings, too.
    """
    everything = any(
        isinstance(node.names, cst.ImportStar) and node.module is not None and _MODULE.fullmatch(dotted(node.module))
        for node in source.of(cst.ImportFrom)
    )
    for call in source.of(cst.Call):
        meaning, name = source.meaning(call.func), dotted(call.func)
        if _OLDER.fullmatch(meaning) or (everything and name in _NAMES and name not in source.imports):
            yield call, f"{name}()"


def note_older(work: Work) -> None:
    """Say where a file uses them."""
    for node, said in older(work.source):
        work.note(node, f"{said}, which Apex had before amp.initialize", _WRITE)


def block_older(work: Work) -> None:
    """Refuse where a file uses them beside ``amp.initialize``."""
    for node, said in older(work.source):
        if not work.edits.covers(work.source, node):
            work.block(node, f"{said}, which Apex had before amp.initialize", _WRITE)
