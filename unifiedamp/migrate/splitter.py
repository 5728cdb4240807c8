"""Gives each statement of a migration's interest a separate line, and keeps the lines that nodes had."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

_SPLIT = re.compile(r"\.(step|update|backward|scale\w*|unscale\w*|init\w*|autocast|apply\w*|gradient|clip\w*)\(")


class Splitter(cst.CSTTransformer):
    """Gives each statement of interest a separate line.

    Attributes:
        lines: node of the new tree → its line in the old text.
    """

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self._module = module
        self._positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        self.lines: dict[cst.CSTNode, int] = {}

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """See ``CSTTransformer``; every node is made anew."""
        if original_node in self._positions:
            self.lines[updated_node] = int(self._positions[original_node].start.line)
        return super().on_leave(original_node, updated_node)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        """Split ``a; b``."""
        if len(original_node.body) < 2 or not _SPLIT.search(self._module.code_for_node(original_node)):
            return updated_node
        lines = [cst.SimpleStatementLine([small]) for small in map(_without_semicolon, updated_node.body)]
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """Split ``if a: b``."""
        if not _SPLIT.search(self._module.code_for_node(original_node)):
            return updated_node
        lines = [cst.SimpleStatementLine([small]) for small in map(_without_semicolon, updated_node.body)]
        return cst.IndentedBlock(lines, header=updated_node.trailing_whitespace)


def _without_semicolon(small: cst.BaseSmallStatement) -> cst.BaseSmallStatement:
    # With no semicolon after it the node is kept, and with it what is known about it.
    if isinstance(small.semicolon, cst.MaybeSentinel):
        return small
    return small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
