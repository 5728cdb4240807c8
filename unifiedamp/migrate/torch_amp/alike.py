"""Models and optimizers that a function is given, where each optimizer is named after its model: ``optimizer_G``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted, parameters
from ..source import Source

_OPTIMIZER = re.compile(r"^(optimizer|optim|opt)_?|_?(optimizer|optim|opt)$")
_MODEL = re.compile(r"^(net|model)_?|_?(net|model)$")


def named_alike(source: Source, function: cst.CSTNode, optimizers: Sequence[str]) -> list[str]:
    """Return the parameters that a function calls and that its optimizers are named after; none if one is not."""
    if not isinstance(function, cst.FunctionDef):
        return []
    called = {dotted(call.func) for call in source.of(cst.Call) if source.scope(call) is function}
    given = [name for name in parameters(function) if name in called]
    found: list[str] = []
    for optimizer in optimizers:
        wanted = _OPTIMIZER.sub("", optimizer.lower())
        models = [name for name in given if wanted and wanted in (name.lower(), _MODEL.sub("", name.lower()))]
        if len(models) != 1:
            return []
        found += models
    return found
