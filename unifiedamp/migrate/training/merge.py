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
    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        """Replace an ``if`` by its body where both branches are the same calls of a session."""
        orelse = updated_node.orelse
        if not isinstance(orelse, cst.Else) or not _pure(updated_node.test) or not _is_ours(updated_node.body):
            return updated_node
        if _text(updated_node.body) != _text(orelse.body):
            return updated_node
        body: list[Any] = list(updated_node.body.body)
        body[0] = body[0].with_changes(leading_lines=[*updated_node.leading_lines, *body[0].leading_lines])
        return cst.FlattenSentinel(body)


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
