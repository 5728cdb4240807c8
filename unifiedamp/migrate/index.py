"""Where in a file each name, call and assignment stands: looked up often, so collected once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import libcst as cst

from .nodes import dotted, walk
from .training.values import bindings


class Index:
    """The nodes of a file by what they are; each list is in the order of the text.

    Args:
        nodes: all of them, in order.
        parents: node → the node around it.
        scopes: node → the function around it, or the module.

    Attributes:
        kinds: class of node → nodes.
        methods: name → calls ``<anything>.name(...)``.
        uses: ``name`` or ``a.b`` → the expressions that are that.
        assigns: the same → the plain assignments of it.
        assigned: function or module → the assignments in it.
        bound: (name, function or module that assigns it).
        functions: name → function; for a class, its ``__init__``.
        names: every name.
    """

    def __init__(
        self,
        nodes: Sequence[cst.CSTNode],
        parents: Mapping[cst.CSTNode, cst.CSTNode],
        scopes: Mapping[cst.CSTNode, cst.FunctionDef | cst.Module],
    ) -> None:
        self._parents, self._scopes = parents, scopes
        self.kinds: dict[type[cst.CSTNode], list[cst.CSTNode]] = defaultdict(list)
        self.methods: dict[str, list[cst.Call]] = defaultdict(list)
        self.uses: dict[str, list[cst.BaseExpression]] = defaultdict(list)
        self.assigns: dict[str, list[cst.Assign]] = defaultdict(list)
        self.assigned: dict[cst.CSTNode, list[cst.Assign]] = defaultdict(list)
        self.bound: set[tuple[str, cst.CSTNode]] = set()
        self.names: set[str] = set()
        for node in nodes:
            self.kinds[type(node)].append(node)
            self._take(node)
        self.functions = self._functions()

    def _take(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self.names.add(node.value)
            if is_reference(node, self._parents[node]):
                self.uses[node.value].append(node)
        elif isinstance(node, cst.Attribute):
            self.uses[dotted(node)].append(node)
        elif isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute):
                self.methods[node.func.attr.value].append(node)
        elif isinstance(node, cst.Assign):
            self.assigned[self._scopes[node]].append(node)
            if len(node.targets) == 1:
                self.assigns[dotted(node.targets[0].target)].append(node)
        elif isinstance(node, cst.AssignTarget):
            self.bound |= {(name, self._scopes[node]) for name in (dotted(node.target), *bindings(node))}

    def _functions(self) -> dict[str, cst.FunctionDef]:
        found = {n.name.value: n for n in self.kinds[cst.FunctionDef] if isinstance(n, cst.FunctionDef)}
        for node in self.kinds[cst.ClassDef]:
            assert isinstance(node, cst.ClassDef)
            inits = [f for f in walk(node) if isinstance(f, cst.FunctionDef) and f.name.value == "__init__"]
            found |= dict(zip([node.name.value], inits, strict=False))
        return found


def is_reference(name: cst.Name, parent: cst.CSTNode) -> bool:
    """Whether a name is a variable, and no attribute, keyword or part of an import."""
    if isinstance(parent, cst.Attribute):
        return parent.value is name
    if isinstance(parent, cst.Arg):
        return parent.keyword is not name
    return not isinstance(parent, cst.ImportAlias | cst.ImportFrom | cst.AsName | cst.FunctionDef | cst.ClassDef)
