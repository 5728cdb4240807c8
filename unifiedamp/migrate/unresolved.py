"""Calls that look like an old API's in a file that does not import it: by a star import, through an object, or by
``importlib``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from .nodes import dotted, literal
from .report import Finding
from .source import Source

_CALLS = re.compile(r"(\w+\.)*amp\.(scale_loss|initialize|init_trainer|master_params)")
_WRITE = "import amp in this file, from apex or mxnet, and run migrate again"
_LATE = "import it by `from apex import amp`, in a `try` if it may be missing, and run migrate again"


def unresolved(source: Source) -> Iterator[Finding]:
    """Yield a finding for each such call; a session's calls have the same names, on a name that the file binds."""
    for call in source.of(cst.Call):
        name = dotted(call.func)
        if _CALLS.fullmatch(name) and (".apex.amp." in name or not _bound(source, name.partition(".")[0])):
            yield Finding(source.line(call), f"{name}(), and this file does not import amp", _WRITE)
        elif _CALLS.fullmatch(name) and _imported_late(source, name.rpartition(".")[0]):
            yield Finding(source.line(call), f"{name}(), and importlib imports {name.rpartition('.')[0]}", _LATE)


def _bound(source: Source, name: str) -> bool:
    if name in source.imports or any(param.name.value == name for param in source.of(cst.Param)):
        return True
    scopes: list[cst.FunctionDef | cst.Module] = [source.module, *source.of(cst.FunctionDef)]
    return any(source.bound_in(name, scope) for scope in scopes)


def _imported_late(source: Source, name: str) -> bool:
    """Whether a name is bound to Apex's module by ``importlib.import_module("apex.amp")``."""
    made = [assign.value for assign in source.assigns(name) if isinstance(assign.value, cst.Call)]
    late = [one for one in made if dotted(one.func).rpartition(".")[2] in ("import_module", "__import__") and one.args]
    return any(literal(one.args[0].value) in ("apex.amp", "apex") for one in late)
