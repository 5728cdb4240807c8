"""What an assignment gives its targets: values without their wrappers, the parts of tuples, the names bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ..nodes import dotted

WRAPPERS = (
    "DDP", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDP", "ApexDDP", "NativeDDP",
    "convert_syncbn_model", "convert_sync_batchnorm", "compile", "DistributedDataParallelCPU", "unwrap_model",
)  # fmt: skip
_KEEPS = ("to", "cuda", "cpu", "train", "eval", "float", "requires_grad_")
_MOVES = (*_KEEPS, "half", "double")


def peeled(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the expressions that a value is, without wrappers, moves to a device, and choices between them."""
    if isinstance(value, cst.IfExp):
        return [*peeled(value.body), *peeled(value.orelse)]
    if isinstance(value, cst.Attribute) and value.attr.value == "module":
        return peeled(value.value)
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute) and value.func.attr.value in _MOVES:
            return peeled(value.func.value)
        last = dotted(value.func).rpartition(".")[2]
        if last in WRAPPERS and value.args:
            return peeled(value.args[0].value)
    return [value]


def moved(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the module of ``model.to(device)`` or ``model.cuda().train()``, which give it back; else the value."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _KEEPS:
        value = value.func.value
    return value


def elements(value: cst.BaseExpression, many: int, place: int) -> Sequence[cst.BaseExpression]:
    """Return what a value gives one of many targets; nothing where it is not as many expressions."""
    found = parts(value)
    return peeled(found[place]) if len(found) == many else ()


def parts(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return a tuple's elements, or the objects that ``initialize`` and ``prepare`` give back."""
    if isinstance(value, cst.Tuple | cst.List):
        return [element.value for element in value.elements]
    if isinstance(value, cst.Call) and dotted(value.func).rpartition(".")[2] in ("initialize", "prepare"):
        named = {arg.keyword.value: arg.value for arg in value.args if arg.keyword is not None}
        given = [arg.value for arg in value.args if arg.keyword is None]
        given += [named[key] for key in ("models", "optimizers")[len(given) :] if key in named]
        return given
    return []


def bindings(node: cst.CSTNode) -> Iterator[str]:
    """Yield the plain names that a node itself binds."""
    goals: list[cst.CSTNode] = []
    if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.NamedExpr | cst.For):
        goals = [node.target]
    elif isinstance(node, cst.AsName):
        goals = [node.name]
    elif isinstance(node, cst.ImportAlias):
        yield node.evaluated_alias or node.evaluated_name.partition(".")[0]
    elif isinstance(node, cst.FunctionDef | cst.ClassDef):
        yield node.name.value
    while goals:
        goal = goals.pop()
        if isinstance(goal, cst.Name):
            yield goal.value
        elif isinstance(goal, cst.Tuple | cst.List):
            goals += [element.value for element in goal.elements]
        elif isinstance(goal, cst.StarredElement):
            goals.append(goal.value)


def parameters_of(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model of ``model.parameters()``, also in ``filter(lambda p: p.requires_grad, ...)`` and lists."""
    if isinstance(node, cst.ListComp) and isinstance(node.elt, cst.Name):
        over = node.for_in
        wanted = [cst.Module([]).code_for_node(one.test) for one in over.ifs]
        all_trained = all(test == f"{node.elt.value}.requires_grad" for test in wanted)
        return parameters_of(over.iter) if all_trained and dotted(over.target) == node.elt.value else None
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "parameters" and not node.args:
        return node.func.value
    name = dotted(node.func)
    if name == "filter" and len(node.args) == 2 and "requires_grad" in cst.Module([]).code_for_node(node.args[0].value):
        return parameters_of(node.args[1].value)
    return parameters_of(node.args[0].value) if name in ("list", "tuple") and len(node.args) == 1 else None
