"""Files whose policy needs no session: they only infer, or set float32 alone; Keras's own policy does that."""

from __future__ import annotations

import re

import libcst as cst

from ..nodes import argument, dotted
from ..source import Source
from ..work import Work
from .flags import is_float32
from .words import LOOP, POLICY, REWRITE, WRAPPER, calls_of

_INFERS = ("predict", "predict_on_batch", "evaluate", "load_weights", "load_model")
_TRAINS = re.compile(r"train|fit|learn|optimi|minimize|gradient|epoch|main|run|start|launch", re.IGNORECASE)


def keep_inference(work: Work) -> bool:
    """Say of a policy that is set for inference alone that it works without a session; False in other files."""
    source, policies = work.source, calls_of(work.source, POLICY)
    others = [*calls_of(source, WRAPPER), *calls_of(source, REWRITE), *(c for n in LOOP for c in source.methods(n))]
    if not policies or others or not any(map(_infers, source.of(cst.Call))) or _may_train(source):
        return False
    what = "the policy is set for models that only infer here, which needs no session"
    work.works(policies[0], what, "nothing has to change: Keras's policy stays, and no loss is scaled")
    return True


def keep_float32(work: Work) -> bool:
    """Say of a file that sets no policy but float32, as before an export, that it works as it is; False in others."""
    source, policies = work.source, calls_of(work.source, POLICY)
    others = [*calls_of(source, WRAPPER), *calls_of(source, REWRITE), *(c for n in LOOP for c in source.methods(n))]
    if not policies or others or not all(is_float32(source, one) for one in policies):
        return False
    what = "float32 is the one policy that is set here, which needs no session"
    work.works(policies[0], what, "nothing has to change here: mixed precision is turned on elsewhere, or never")
    return True


def _infers(call: cst.Call) -> bool:
    return dotted(call.func).rpartition(".")[2] in _INFERS


def _may_train(source: Source) -> bool:
    """Whether anything called here trains by its name, compiles a model with an optimizer, or is Keras's callback."""
    functions = {one.name.value for one in source.of(cst.FunctionDef)}
    return any(_trains(call, functions, source.meaning(call.func)) for call in source.of(cst.Call)) or any(
        "train" in one or "gradient" in one.lower() for one in functions
    )


def _trains(call: cst.Call, functions: set[str], meaning: str) -> bool:
    name = dotted(call.func).rpartition(".")[2] or meaning
    if name == "compile":
        return bool(call.args) and (argument(call, "optimizer", 0) is not None or any(a.star for a in call.args))
    return name not in functions and bool(_TRAINS.search(name)) and not meaning.startswith("argparse.")
