"""Scaled losses that go backward inside an autocast region: the region ends before them, as torch advises."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted, walk
from ..report import Finding
from ..source import Source
from .arguments import AUTOCAST
from .entered import choice

# Calls that compute nothing that autocast casts: they mean the same behind the region.
_UNCAST = {
    "scale", "backward", "step", "update", "unscale_", "clip_grad_norm_", "clip_grad_value_", "parameters", "zero_grad",
    "get_scale", "item", "detach", "cpu", "size", "print", "append", "len", "format", "range", "isinstance", "int",
    "set_postfix", "set_description", "add_scalar", "write", "info", "get_last_lr", "synchronize",
}  # fmt: skip
# Calls of tensors and numbers: no model computes in them, so a separate region is as good.
_OF_TENSORS = {
    "argmax", "argmin", "max", "min", "topk", "mean", "sum", "abs", "round", "eq", "ne", "gt", "lt", "ge", "le",
    "float", "long", "bool", "softmax", "sigmoid", "view", "reshape", "squeeze", "unsqueeze", "expand_as", "t", "numel",
    "tolist", "numpy", "to",
}  # fmt: skip
_TRAIN = {"scale", "backward", "step", "unscale_", "clip_grad_norm_", "clip_grad_value_"}
_OPAQUE = (cst.With, cst.FunctionDef, cst.ClassDef, cst.MatrixMultiply, cst.MatrixMultiplyAssign)


def ended_before_backward(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which regions end before their scaled loss goes backward."""
    ends = {with_: place for with_ in source.of(cst.With) for place in [_end(source, with_)] if place is not None}
    if not ends:
        return source.text, []
    what, write = "a scaled loss goes backward inside this autocast region", "it stands behind it now, as torch advises"
    notes = [Finding(source.line(with_), what, write) for with_ in ends]
    return cst.ensure_type(source.module.visit(_End(ends)), cst.Module).bytes, notes


def _end(source: Source, with_: cst.With) -> slice | None:
    """Return the statements, of a region, that may stand behind it; None where they are to stay. What comes behind them
    goes into a separate region.

    A model that computes in the region again, behind the step, stays a matter of the user's: there, a region computes
    with the copies of the weights that it made before the step.
    """
    item = _kept(source, with_.items[0].item)
    call = item.body if isinstance(item, cst.IfExp) else item
    if len(with_.items) != 1 or not isinstance(call, cst.Call) or not isinstance(with_.body, cst.IndentedBlock):
        return None
    if source.meaning(call.func) not in AUTOCAST or (call is not item and choice(source, call) is None):
        return None
    body = with_.body.body
    scaled = (place for place, one in enumerate(body) if any(map(_is_scaled_backward, walk(one))))
    first = next(scaled, 0)
    stop = next((place for place in range(first, len(body)) if not _is_uncast(body[place])), len(body))
    return slice(first, stop) if 0 < first < stop and all(map(_is_apart, body[stop:])) else None


def _kept(source: Source, item: cst.BaseExpression) -> cst.BaseExpression:
    """Return the region that a variable keeps, where one line alone gives it its value; else the expression itself."""
    made = source.assigns(item.value) if isinstance(item, cst.Name) else []
    return made[0].value if len(made) == 1 and source.scope(made[0]) is source.scope(item) else item


def _is_scaled_backward(node: cst.CSTNode) -> bool:
    """Whether a node is ``scaler.scale(loss).backward()``."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "backward":
        return False
    return isinstance(node.func.value, cst.Call) and dotted(node.func.value.func).endswith(".scale")


def _is_uncast(statement: cst.CSTNode) -> bool:
    """Whether a statement computes nothing that autocast would cast."""
    return _called(statement) <= _UNCAST and not any(isinstance(one, _OPAQUE) for one in walk(statement))


def _is_apart(statement: cst.CSTNode) -> bool:
    """Whether a statement may have a separate region: it neither trains nor computes with a model."""
    opaque = any(isinstance(one, _OPAQUE) for one in walk(statement))
    return not opaque and _called(statement) <= (_UNCAST - _TRAIN) | _OF_TENSORS


def _called(statement: cst.CSTNode) -> set[str]:
    """Return the names of what is called in a statement."""
    calls = [one.func for one in walk(statement) if isinstance(one, cst.Call)]
    return {func.attr.value if isinstance(func, cst.Attribute) else dotted(func) for func in calls}


class _End(cst.CSTTransformer):
    """Puts the last statements of regions behind them."""

    def __init__(self, ends: dict[cst.With, slice]) -> None:
        super().__init__()
        self._ends = ends

    def leave_With(
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.With | cst.FlattenSentinel[cst.BaseStatement]:
        """See ``CSTTransformer``."""
        place = self._ends.get(original_node)
        if place is None:
            return updated_node
        assert isinstance(updated_node.body, cst.IndentedBlock)
        body = updated_node.body.body
        found: list[cst.BaseStatement] = [self._region(updated_node, body[: place.start])]
        found += [one for one in body[place] if isinstance(one, cst.BaseStatement)]
        if body[place.stop :]:
            found.append(self._region(updated_node, body[place.stop :]).with_changes(leading_lines=()))
        return cst.FlattenSentinel(found)

    def _region(self, with_: cst.With, body: Sequence[cst.BaseStatement]) -> cst.With:
        return with_.with_changes(body=with_.body.with_changes(body=body))
