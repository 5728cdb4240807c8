"""Objects that keep a session and go to another process, or into a file, by pickle: a session cannot."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import dotted, walk
from .facts import Facts

Problem = tuple[cst.CSTNode, str, str]
_STARTS = ("spawn", "Process", "start_processes")
_PICKLES = ("pickle.dump", "pickle.dumps", "dill.dump", "dill.dumps", "torch.save")
_WRITE = "make the session in the process that trains, or leave it out in `__getstate__`"


def sent(facts: Facts) -> Iterator[Problem]:
    """Yield each place where an object that holds a session is pickled, or starts a process that runs one of its
    methods. A GradScaler can be pickled; a session cannot, because it belongs to objects of one process.
    """
    keep = {key[0] for key in facts.aliases.keys if facts.aliases.group(key) in facts.sessions}
    for call in facts.source.of(cst.Call):
        owner = facts.aliases.scopes.class_of(facts.source.scope(call))
        if owner is None or owner not in keep or any(_leaves_out(one) for one in owner.body.body):
            continue
        for given in _given(facts, call):
            if dotted(given) == "self" or _is_method(owner, dotted(given)):
                code = facts.source.code(given).strip()
                what = f"{dotted(call.func)} pickles {code}, and with it the session that {owner.name.value} keeps"
                yield call, what, _WRITE
                break


def _given(facts: Facts, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what a call pickles: all that a process is started with, the first argument of ``pickle.dump``."""
    if dotted(call.func).rpartition(".")[2] in _STARTS:
        for arg in call.args:
            yield arg.value
            yield from (each.value for each in walk(arg.value) if isinstance(each, cst.Element))
    elif facts.source.meaning(call.func) in _PICKLES:
        yield from (arg.value for arg in call.args[:1])


def _is_method(owner: cst.ClassDef, name: str) -> bool:
    methods = {one.name.value for one in owner.body.body if isinstance(one, cst.FunctionDef)}
    return name.startswith("self.") and name.removeprefix("self.") in methods


def _leaves_out(member: cst.CSTNode) -> bool:
    return isinstance(member, cst.FunctionDef) and member.name.value in ("__getstate__", "__reduce__")
