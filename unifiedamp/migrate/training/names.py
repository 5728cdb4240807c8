"""The session's name: one that the file does not give to something else."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted
from ..source import Source


def free_name(source: Source, wanted: str) -> str:
    """Return ``wanted``, or ``amp_session`` where the file calls a flag, a parameter or an attribute so."""
    return "amp_session" if wanted == "amp" and any(_takes(source, node) for node in source.nodes) else wanted


def _takes(source: Source, node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Param):
        return node.name.value == "amp"
    if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.For | cst.NamedExpr):
        if dotted(node.target) not in ("amp", "self.amp"):
            return False
        assign = source.parents.get(node)
        return not (isinstance(assign, cst.Assign) and dotted(assign.value) == "None")
    return isinstance(node, cst.Attribute) and dotted(node) == "self.amp"
