"""``--to compat``: imports and attribute uses of old AMP calls become those of ``unifiedamp.compat``, and no more."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from .edits import Edits
from .nodes import dotted
from .report import Finding
from .source import Source, Statement
from .work import SWA

NAME = "compat"
_TORCH = ("GradScaler", "autocast", "custom_bwd", "custom_fwd")
_APEX = (
    "_amp_state", "disable_casts", "float_function", "half_function", "initialize", "lists", "load_state_dict",
    "master_params", "promote_function", "register_float_function", "register_half_function",
    "register_promote_function", "scale_loss", "state_dict",
)  # fmt: skip
_MXNET = ("convert_hybrid_block", "convert_model", "init", "init_trainer", "scale_loss", "unscale")
_KERAS = ("LossScaleOptimizer", "Policy", "global_policy", "set_global_policy")
_KERAS_OLD = ("DynamicLossScale", "FixedLossScale", "LossScaleOptimizer", "Policy", "global_policy", "set_policy")
_REWRITE = ("enable_mixed_precision_graph_rewrite", "disable_mixed_precision_graph_rewrite")


class Facade(NamedTuple):
    """A module of ours: the package it is in, its name, and what it has."""

    package: str
    name: str
    members: tuple[str, ...]


_torch = Facade("unifiedamp.compat", "torch_cuda_amp", _TORCH)
_apex = Facade("unifiedamp.compat", "apex", _APEX)
_mxnet = Facade("unifiedamp.compat", "mxnet", _MXNET)
_keras = Facade("unifiedamp.compat", "keras2", _KERAS)
_keras_old = Facade("unifiedamp.compat.keras2", "experimental", _KERAS_OLD)
_rewrite = Facade("unifiedamp.compat", "keras2", _REWRITE)

MODULES: dict[str, Facade] = {
    "torch.amp": _torch,
    "torch.cuda.amp": _torch,
    "torch.cuda.amp.grad_scaler": _torch,
    "torch.cuda.amp.autocast_mode": _torch,
    "apex.amp": _apex,
    "mxnet.amp": _mxnet,
    "mxnet.contrib.amp": _mxnet,
    "mxnet.contrib.amp.amp": _mxnet,
    "keras.mixed_precision": _keras,
    "tensorflow.keras.mixed_precision": _keras,
    "keras.mixed_precision.experimental": _keras_old,
    "tensorflow.keras.mixed_precision.experimental": _keras_old,
}
_MEMBERS: dict[str, Facade] = {"torch.autocast": _torch} | {
    f"{root}.{name}": _rewrite
    for root in (
        "tensorflow.train.experimental", "tensorflow.compat.v1.train.experimental", "tensorflow.mixed_precision",
        "tensorflow.compat.v1.mixed_precision", "tensorflow.mixed_precision.experimental",
    )
    for name in _REWRITE
}  # fmt: skip


def rewrite(source: Source) -> tuple[Edits, list[Finding]]:
    """Return the changes to a file, and what of the old API our modules do not have (then nothing is changed)."""
    unknown = [*_unknown(source)]
    if unknown:
        return Edits(), unknown
    edits = Edits()
    _uses(source, edits)
    imports: list[cst.Import | cst.ImportFrom] = [*source.of(cst.Import), *source.of(cst.ImportFrom)]
    for node in imports:
        _import(source, edits, node)
    return edits, []


def _facade(meaning: str) -> tuple[Facade, str] | None:
    """Return our module for a dotted name, and what is taken from it: a member, or nothing for the module itself."""
    if meaning in MODULES:
        return MODULES[meaning], ""
    root, _, member = meaning.rpartition(".")
    facade = _MEMBERS.get(meaning) or MODULES.get(root)
    return (facade, member) if facade is not None else None


def _unknown(source: Source) -> Iterator[Finding]:
    for call in source.calls(*SWA) if source.calls("apex.amp.initialize") else ():
        what = f"{dotted(call.func)}(...) is a wrapper around an optimizer, which unifiedamp.compat refuses"
        yield Finding(source.line(call), what, "initialize the optimizer alone", blocks=True)
    for node in (*source.of(cst.Attribute), *source.of(cst.Name)):
        if isinstance(node, cst.Name) and not source.is_reference(node):
            continue
        found = None if _in_import(source, node) else _facade(source.meaning(node))
        if found is not None and found[1] and found[1] not in found[0].members and not _goes_on(source, node):
            yield _no_counterpart(source.line(node), source.meaning(node))
    for statement in source.of(cst.ImportFrom):
        module = dotted(statement.module) if statement.module is not None else ""
        if isinstance(statement.names, cst.ImportStar):
            if module in MODULES:
                yield Finding(source.line(statement), f"from {module} import *", "name what is imported", blocks=True)
            continue
        for alias in statement.names:
            found = _facade(f"{module}.{alias.evaluated_name}")
            if found is not None and found[1] and found[1] not in found[0].members:
                yield _no_counterpart(source.line(statement), f"{module}.{alias.evaluated_name}")


def _no_counterpart(line: int, meaning: str) -> Finding:
    return Finding(line, f"{meaning} has no counterpart in unifiedamp.compat", "replace it by hand", blocks=True)


def _goes_on(source: Source, node: cst.CSTNode) -> bool:
    """Whether a longer dotted name around this one is a module or member of ours."""
    parent = source.parents[node]
    return isinstance(parent, cst.Attribute) and parent.value is node and _facade(source.meaning(parent)) is not None


def _in_import(source: Source, node: cst.CSTNode) -> bool:
    return any(isinstance(one, cst.Import | cst.ImportFrom) for one in source.above(node))


# -- uses --------------------------------------------------------------------------------------------------------


def _uses(source: Source, edits: Edits) -> None:
    """Replace dotted names that reach an old module through the framework's own name: ``torch.cuda.amp.GradScaler``."""
    lines: dict[str, None] = {}
    for node in source.of(cst.Attribute):
        found = _facade(source.meaning(node))
        if found is None or _goes_on(source, node) or _in_import(source, node) or _by_alias(source, node):
            continue
        facade, member = found
        bound = facade.name if facade.name not in source.names() else f"compat_{facade.name}"
        named = f" as {bound}" if bound != facade.name else ""
        lines[f"from {facade.package} import {facade.name}{named}"] = None
        edits.expression(node, f"{bound}.{member}" if member else bound)
    if lines:
        last = _last_import(source)
        for line in lines:
            edits.after(last, line)


def _by_alias(source: Source, node: cst.Attribute) -> bool:
    """Whether a name that an import binds to an old module leads here: that import changes, not the use."""
    root = dotted(node).partition(".")[0]
    meaning = source.imports.get(root, "")
    return _facade(meaning) is not None


def _last_import(source: Source) -> Statement:
    last: Statement | None = None
    for statement in source.module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            if last is not None and not isinstance(statement, cst.Try | cst.If):
                break
            continue
        if any(isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body):
            last = statement
        elif last is not None:
            break
    return last or next(s for s in source.module.body if isinstance(s, Statement))


# -- imports -----------------------------------------------------------------------------------------------------


def _import(source: Source, edits: Edits, node: cst.Import | cst.ImportFrom) -> None:
    aliases = () if isinstance(node.names, cst.ImportStar) else node.names
    taken = {alias: found for alias in aliases if (found := _replaced(source, node, alias)) is not None}
    names: dict[str, list[str]] = {}
    for module, name in filter(None, taken.values()):
        names.setdefault(module, []).append(name)
    lines = [f"from {module} import {', '.join(dict.fromkeys(found))}" for module, found in names.items()]
    statement = source.statement(node)
    if taken and len(taken) == len(aliases):
        edits.statement(statement, *lines)
    elif taken:
        edits.change(node, functools.partial(_without, tuple(taken), aliases))
        for line in lines:
            edits.after(statement, line)


def _replaced(source: Source, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> tuple[str, ...] | None:
    """Return the module of ours and the name to import for an alias, () for neither, and None where it stays."""
    name, bound = alias.evaluated_name, alias.evaluated_alias
    if isinstance(node, cst.ImportFrom):
        if node.relative or node.module is None:
            return None
        name = f"{dotted(node.module)}.{name}"
        bound = bound or alias.evaluated_name
    found = _facade(name)
    if found is None or bound is None:  # import torch.cuda.amp binds the framework's name
        return () if not bound and name.partition(".")[0] == "apex" and _only_amp(source) else None
    facade, member = found
    if member:
        return f"{facade.package}.{facade.name}", f"{member}{_as(member, bound)}"
    return facade.package, f"{facade.name}{_as(facade.name, bound)}"


def _as(name: str, bound: str) -> str:
    return "" if name == bound else f" as {bound}"


def _only_amp(source: Source) -> bool:
    """Whether every use of the name ``apex`` is one of ``apex.amp``."""
    uses = [n for n in source.of(cst.Name) if n.value == "apex" and source.is_reference(n)]
    uses = [n for n in uses if not _in_import(source, n)]
    around = [source.parents[use] for use in uses]
    return bool(uses) and all(isinstance(one, cst.Attribute) and one.attr.value == "amp" for one in around)


def _without(
    gone: Sequence[cst.ImportAlias], aliases: Sequence[cst.ImportAlias], new: cst.Import | cst.ImportFrom
) -> cst.Import | cst.ImportFrom:
    assert not isinstance(new.names, cst.ImportStar)
    kept = [n for old, n in zip(aliases, new.names, strict=True) if old not in gone]
    kept[-1] = kept[-1].with_changes(comma=new.names[-1].comma)
    return new.with_changes(names=kept)
