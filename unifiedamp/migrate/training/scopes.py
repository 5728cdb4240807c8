"""Where the names of a file are bound: its functions, its classes and their methods."""

from __future__ import annotations

import libcst as cst

from ..source import Source
from .values import bindings


class Scopes:
    """The functions of a file, and the names that each of them gives a value.

    Args:
        source: the file.

    Attributes:
        functions: name → the functions of that name; of a class, its ``__init__``.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scopes: dict[cst.CSTNode, cst.CSTNode] = {}
        self._bound: dict[cst.CSTNode, set[str]] = {}
        self.functions: dict[str, list[cst.FunctionDef]] = {}
        self._find()

    def of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the function around a node, or the module."""
        return self._scopes.get(node) or self._source.root(node)

    def binds(self, scope: cst.CSTNode, name: str) -> bool:
        """Whether a function, or the module, gives a name its value."""
        return name in self._bound.get(scope, ())

    def binding(self, node: cst.CSTNode, name: str) -> cst.CSTNode:
        """Return the function that binds a name where ``node`` stands, or the module."""
        scope = self.of(node)
        while not isinstance(scope, cst.Module):
            if name in self._bound.get(scope, ()):
                return scope
            scope = self.of(scope)
        return scope

    def _find(self) -> None:
        declared: dict[cst.CSTNode, set[str]] = {}
        for node in self._source.nodes:
            parent = self._source.parents.get(node)
            if parent is None:
                self._scopes[node] = node
            else:
                inside = isinstance(parent, cst.FunctionDef) and node is not parent.name
                self._scopes[node] = parent if inside else self._scopes[parent]
            scope = self.of(node)
            if isinstance(node, cst.FunctionDef):
                self.functions.setdefault(node.name.value, []).append(node)
                owner = self.class_of(node)
                if owner is not None and node.name.value == "__init__":
                    self.functions.setdefault(owner.name.value, []).append(node)
            if isinstance(node, cst.Param):
                self._bound.setdefault(scope, set()).add(node.name.value)
            elif isinstance(node, cst.Global | cst.Nonlocal):
                declared.setdefault(scope, set()).update(item.name.value for item in node.names)
            else:
                self._bound.setdefault(scope, set()).update(bindings(node))
        for scope, names in declared.items():
            self._bound[scope] -= names

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class that a method is one of."""
        for above in self._source.above(node):
            if isinstance(above, cst.ClassDef):
                return above
            if isinstance(above, cst.FunctionDef):
                return None
        return None
