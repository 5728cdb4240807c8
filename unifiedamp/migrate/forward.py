"""Where old code has no region around its forward pass: which statements compute a loss, and go under autocast."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from .edits import Edits
from .nodes import dotted, targets, walk
from .source import Source, Statement


def wrap_forward(
    source: Source,
    edits: Edits,
    loss: str,
    near: cst.CSTNode,
    models: Collection[str],
    header: str,
    ends: Collection[cst.CSTNode],
) -> bool:
    """Put the statements that compute ``loss`` from a model under ``header``.

    Args:
        source: the file.
        edits: takes the change.
        loss: the variable that holds the loss.
        near: where the loss is scaled; its function is searched.
        models: what is called in a forward pass.
        header: the ``with`` line.
        ends: the nodes at which one step ends and the next begins; no region goes across one.

    Returns:
        Whether the loss is assigned there.
    """
    scope = source.scope(near)
    assigned = [s for s in _assignments(source, loss) if source.scope(s) is scope]
    regions: dict[cst.CSTNode, list[tuple[int, int]]] = {}
    blocks: dict[cst.CSTNode, list[Statement]] = {}
    for statement in assigned:
        place = _lifted(source, statement, models, scope)
        block: cst.CSTNode = source.block(place)
        body = blocks[block] = [s for s in source.block(place).body if isinstance(s, Statement)]
        regions.setdefault(block, []).append(_region(source, body, body.index(place), models, ends))
    for block, found in regions.items():
        for first, last in _joined(found):
            if not _covered(source, edits, blocks[block][first]):
                edits.wrap(blocks[block][first], blocks[block][last], header)
    return bool(assigned)


def _covered(source: Source, edits: Edits, statement: Statement) -> bool:
    return any(source.inside(statement, wrap.first) for wrap in edits.wraps)


def _assignments(source: Source, name: str) -> Iterator[Statement]:
    """Yield the statements that assign a variable."""
    for node in source.nodes:
        if isinstance(node, cst.Assign | cst.AugAssign | cst.AnnAssign) and name in targets(node):
            yield source.statement(node)


def mentions(source: Source, node: cst.CSTNode, names: Collection[str]) -> bool:
    """Whether a node uses one of these variables."""
    return any(
        (isinstance(one, cst.Name) and one.value in names and source.is_reference(one))
        or (isinstance(one, cst.Attribute) and dotted(one) in names)
        for one in walk(node)
    )


def calls_one(node: cst.CSTNode, models: Collection[str]) -> bool:
    """Whether a model is called in a node, itself, a part or a method of it; or handed to a function."""
    for one in walk(node):
        if isinstance(one, cst.Call):
            name = dotted(one.func)
            if any(
                name == model or (name.startswith(f"{model}.") and name.endswith((".forward", ".module")))
                for model in models
            ):
                return True
            if any(dotted(arg.value) in models for arg in one.args) and name not in ("len", "print", "isinstance"):
                return True
    return False


def _lifted(source: Source, statement: Statement, models: Collection[str], scope: cst.CSTNode) -> Statement:
    """Return the statement that holds ``statement`` in the block where the model is called for it."""
    place, name = statement, ""
    while True:
        body = [s for s in source.block(place).body if isinstance(s, Statement)]
        index = body.index(place)
        if any(flag for flag in _tainted(source, body[: index + 1], models)):
            return place
        above = source.parents.get(source.block(place))
        if above is None or above is scope or not isinstance(above, Statement) or name:
            return statement
        place = above


def _tainted(source: Source, body: Sequence[Statement], models: Collection[str]) -> list[bool]:
    """Tell for each statement whether it uses what a model computed."""
    names: set[str] = set()
    flags: list[bool] = []
    for statement in body:
        flag = calls_one(statement, models) or mentions(source, statement, names)
        if flag:
            names |= targets(statement)
        flags.append(flag)
    return flags


def _region(
    source: Source, body: Sequence[Statement], last: int, models: Collection[str], ends: Collection[cst.CSTNode]
) -> tuple[int, int]:
    """Return the first and last place of what computes the value assigned at ``last``."""
    flags = _tainted(source, body, models)
    needed = _names(source, body[last])
    first = last
    for index in range(last - 1, -1, -1):
        if any(source.inside(end, body[index]) for end in ends):
            break
        if flags[index] and targets(body[index]) & needed:
            first = index
            needed |= _names(source, body[index])
    return first, last


def _names(source: Source, node: cst.CSTNode) -> set[str]:
    used = {dotted(one) for one in walk(node) if isinstance(one, cst.Attribute)}
    return used | {one.value for one in walk(node) if isinstance(one, cst.Name) and source.is_reference(one)}


def _joined(regions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge regions that touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(regions):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
