"""What the branches of an ``if`` hold, one of which uses AMP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import libcst as cst

from .nodes import dotted, walk
from .source import Source, Statement

_STEPS = frozenset({"apply_gradients", "step", "update", "minimize"})
_GRADIENTS = frozenset({"gradient", "backward", "compute_gradients"})


def takes_step(body: Sequence[cst.BaseStatement]) -> bool:
    """Whether an optimizer steps in a branch."""
    return any(_is_step(n) for each in body for n in walk(each) if isinstance(n, cst.Call))


def _is_step(call: cst.Call) -> bool:
    """Whether a call is one of a trainer or an optimizer that steps; ``metrics.update(...)`` is none."""
    name = dotted(call.func)
    return name_of(call) in _STEPS and (name_of(call) != "update" or "train" in name or "opt" in name)


def only_here(
    source: Source, loop: Callable[[cst.Call], bool], body: Sequence[cst.BaseStatement], other: Sequence[cst.CSTNode]
) -> Statement | None:
    """Return a line of the branch with AMP that is no part of a step and that the other branch does not have.

    Args:
        source: the file.
        loop: whether a call is the old API's in a step.
        body: the branch with AMP.
        other: the other branch.
    """
    texts = {source.code(one).strip() for each in other for one in statements(each)}
    withs = [one for each in body for one in walk(each) if isinstance(one, cst.With) and _enters(one, loop)]
    for line in (one for each in body for one in statements(each)):
        if not isinstance(line, cst.SimpleStatementLine) or source.code(line).strip() in texts:
            continue
        if any(source.inside(line, one) for one in withs):
            continue  # what is in a scaled loss's `with` is looked at where that is rewritten
        calls = [node for node in walk(line) if isinstance(node, cst.Call)]
        of_a_step = any(loop(call) or _is_step(call) or name_of(call) in _GRADIENTS for call in calls)
        copies = isinstance(line.body[0], cst.Assign) and not calls and not _reads_attribute(line.body[0])
        if not (of_a_step or copies or isinstance(line.body[0], cst.Pass) or _is_print(calls)):
            return line
    return None


def _enters(with_: cst.With, loop: Callable[[cst.Call], bool]) -> bool:
    return any(isinstance(item.item, cst.Call) and loop(item.item) for item in with_.items)


def _reads_attribute(assign: cst.Assign) -> bool:
    return any(isinstance(node, cst.Attribute) for node in walk(assign.value))


def _is_print(calls: Sequence[cst.Call]) -> bool:
    return bool(calls) and dotted(calls[0].func) in ("print", "tf.print")


def statements(block: cst.CSTNode) -> Iterator[Statement]:
    """Yield the statements in a node, inner ones too."""
    for node in walk(block):
        if isinstance(node, cst.BaseStatement):
            yield node


def backward_only(source: Source, other: Sequence[cst.BaseStatement]) -> bool:
    """Whether statements do nothing but ``backward``."""
    simple = [s for o in other for s in statements(o) if isinstance(s, cst.SimpleStatementLine)]
    return bool(simple) and all("backward(" in source.code(s) for s in simple)


def name_of(call: cst.Call) -> str:
    """Return the last part of what is called."""
    return dotted(call.func).rpartition(".")[2]
