"""What MXNet's ``amp`` calls things."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted
from ..source import Source

NAME = "mxnet.amp"
OLD_IMPORTS = ("mxnet.amp", "mxnet.contrib.amp", "mxnet.contrib.amp.amp", "mxnet.autograd")
KNOWN = ("init", "init_trainer", "scale_loss", "unscale")
CONVERT = ("convert_model", "convert_hybrid_block", "convert_symbol", "convert_bucketing_module")
ROOTS = ("mxnet.amp", "mxnet.contrib.amp", "mxnet.contrib.amp.amp", "mxnet.amp.amp")


def calls_of(source: Source, name: str) -> list[cst.Call]:
    """Return the calls of a function of ``amp``, in order."""
    return source.calls(*(f"{root}.{name}" for root in ROOTS))


def steps_of(source: Source, trainer: str, near: cst.CSTNode) -> list[cst.Call]:
    """Return the calls ``trainer.step(batch_size)`` in the function around ``near``."""
    scope = source.scope(near)
    calls = [c for c in source.methods("step") if dotted(c.func) == f"{trainer}.step"]
    return [c for c in calls if source.scope(c) is scope and c.args]
