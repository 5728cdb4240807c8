"""Scaled losses that go backward inside an autocast region: the region ends before them, as torch advises."""

from __future__ import annotations

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
_OPAQUE = (cst.With, cst.FunctionDef, cst.ClassDef, cst.MatrixMultiply, cst.MatrixMultiplyAssign)


def ended_before_backward(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which regions end before their scaled loss goes backward."""
    ends = {with_: place for with_ in source.of(cst.With) for place in [_end(source, with_)] if place}
    if not ends:
        return source.module.bytes, []
    what, write = "a scaled loss goes backward inside this autocast region", "it stands behind it now, as torch advises"
    notes = [Finding(source.line(with_), what, write) for with_ in ends]
    return cst.ensure_type(source.module.visit(_End(ends)), cst.Module).bytes, notes


def _end(source: Source, with_: cst.With) -> int:
    """Return the place, in a region, from which on its statements may stand behind it; 0 where it is to stay.

    A model that computes in the region again, behind the step, stays a matter of the user's: there, a region computes
    with the copies of the weights that it made before the step.
    """
    item = with_.items[0].item
    call = item.body if isinstance(item, cst.IfExp) else item
    if len(with_.items) != 1 or not isinstance(call, cst.Call) or not isinstance(with_.body, cst.IndentedBlock):
        return 0
    if source.meaning(call.func) not in AUTOCAST or (call is not item and choice(source, call) is None):
        return 0
    body = with_.body.body
    scaled = (place for place, one in enumerate(body) if any(map(_is_scaled_backward, walk(one))))
    first = next(scaled, 0)
    return first if all(map(_is_uncast, body[first:])) else 0


def _is_scaled_backward(node: cst.CSTNode) -> bool:
    """Whether a node is ``scaler.scale(loss).backward()``."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "backward":
        return False
    return isinstance(node.func.value, cst.Call) and dotted(node.func.value.func).endswith(".scale")


def _is_uncast(statement: cst.CSTNode) -> bool:
    """Whether a statement computes nothing that autocast would cast."""
    nodes = list(walk(statement))
    calls = [one.func for one in nodes if isinstance(one, cst.Call)]
    names = {func.attr.value if isinstance(func, cst.Attribute) else dotted(func) for func in calls}
    return names <= _UNCAST and not any(isinstance(one, _OPAQUE) for one in nodes)


class _End(cst.CSTTransformer):
    """Puts the last statements of regions behind them."""

    def __init__(self, ends: dict[cst.With, int]) -> None:
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
        region = updated_node.with_changes(body=updated_node.body.with_changes(body=body[:place]))
        return cst.FlattenSentinel([region, *(one for one in body[place:] if isinstance(one, cst.BaseStatement))])
