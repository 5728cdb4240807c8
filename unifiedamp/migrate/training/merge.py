"""``if flag: X else: X``: branches with and without AMP that are the same calls of a session become one."""

from __future__ import annotations

from typing import Any

import libcst as cst

from ..nodes import walk

_TELL = ("scale_loss", "clip_grad_norm", "clip_grad_value", "step", "autocast", "unscale")


def merge(module: cst.Module) -> cst.Module:
    """Return the module with such branches merged."""
    return cst.ensure_type(module.visit(_Merge()), cst.Module)


class _Merge(cst.CSTTransformer):
    def __init__(self) -> None:
        super().__init__()
        self._regions: list[str] = []

    def visit_With(self, node: cst.With) -> None:
        """See ``CSTTransformer``."""
        self._regions.append(_header(node))

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> cst.With:
        """See ``CSTTransformer``."""
        self._regions.pop()
        return updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        """Replace an ``if`` by its body where both branches are the same calls of a session."""
        orelse = updated_node.orelse
        if not isinstance(orelse, cst.Else) or not _pure(updated_node.test) or not _is_ours(updated_node.body):
            return updated_node
        made = self._without_region(updated_node.body)
        if _text(made) != _text(orelse.body):
            return updated_node
        body: list[Any] = list(made.body)
        body[0] = body[0].with_changes(leading_lines=[*updated_node.leading_lines, *body[0].leading_lines])
        return cst.FlattenSentinel(body)

    def _without_region(self, block: cst.BaseSuite) -> cst.BaseSuite:
        """Return what is in a region inside the same region, which is there already."""
        first = block.body[0] if len(block.body) == 1 else None
        inside = isinstance(first, cst.With) and _header(first).endswith(".autocast()")
        return first.body if isinstance(first, cst.With) and inside and _header(first) in self._regions else block


def _header(node: cst.With) -> str:
    """Return the code of what a ``with`` enters."""
    return ", ".join(cst.Module([]).code_for_node(item.item) for item in node.items)


def _is_ours(body: cst.BaseSuite) -> bool:
    return isinstance(body, cst.IndentedBlock) and any(
        isinstance(one, cst.Attribute) and one.attr.value in _TELL for one in walk(body)
    )


def _pure(test: cst.BaseExpression) -> bool:
    return not any(isinstance(one, cst.Call | cst.NamedExpr | cst.Await) for one in walk(test))


def _text(body: cst.BaseSuite) -> str:
    """Return a block's code without comments and blank lines."""
    lines = cst.Module(body.body).code.splitlines() if isinstance(body, cst.IndentedBlock) else []  # type: ignore[arg-type]  # invariant
    kept = [line.partition("#")[0].rstrip() if '"' not in line and "'" not in line else line for line in lines]
    return "\n".join(line for line in kept if line.strip())
