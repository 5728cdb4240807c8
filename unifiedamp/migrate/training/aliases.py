"""Which expressions of a file stand for the same object: assignments, arguments, attributes, wrappers and returns."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from ..nodes import dotted, walk
from ..source import Source
from .reached import Reached
from .scopes import Scopes
from .values import elements, parts, peeled

Key = tuple[Any, str]
_CONSTANTS = ("None", "True", "False")
_SPACE = cst.BaseParenthesizableWhitespace | cst.LeftParen | cst.RightParen


class Aliases:
    """Groups of expressions that stand for one object.

    Args:
        source: the file.

    Attributes:
        scopes: where its names are bound.
        reached: the functions that its calls reach.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.scopes = Scopes(source)
        self.reached = Reached(source, self.scopes)
        self._root: dict[Key, Key] = {}
        self._attributes: dict[str, list[Key]] = {}
        self._classes: dict[str, list[cst.ClassDef]] = {}
        for owner in source.of(cst.ClassDef):
            self._classes.setdefault(owner.name.value, []).append(owner)
        self._join()

    def key(self, node: cst.CSTNode) -> Key | None:
        """Return what names the object of an expression: where its name is bound, and its text."""
        text = dotted(node)
        if not text or text in _CONSTANTS:
            return None
        root = text.partition(".")[0]
        scope = self.scopes.binding(node, root)
        if root == "self" and "." in text and isinstance(scope, cst.FunctionDef):
            return self.scopes.class_of(scope) or scope, text
        return scope, text

    def group(self, key: Key | None) -> Key | None:
        """Return the one key that stands for a key's group."""
        if key is None:
            return None
        while key in self._root and self._root[key] != key:
            key = self._root[key]
        return key

    def of(self, node: cst.CSTNode) -> Key | None:
        """Return the group of an expression."""
        return self.group(self.key(node))

    def alike(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Whether two expressions say the same of the same objects: ``amp and device.type`` of what ``self`` keeps."""
        if dotted(one) and dotted(other):
            return self._is_same(one, other)
        if type(one) is not type(other):
            return False
        inner = [[c for c in each.children if not isinstance(c, _SPACE)] for each in (one, other)]
        if not any(inner):
            code = [cst.Module([]).code_for_node(each).strip() for each in (one, other)]
            return code[0] == code[1]
        return len(inner[0]) == len(inner[1]) and all(self.alike(*pair) for pair in zip(*inner, strict=True))

    def _is_same(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        while True:
            if dotted(one) == dotted(other) or self.of(one) == self.of(other):
                return all(len(self._source.assigns(dotted(each))) < 2 for each in (one, other))
            if not (isinstance(one, cst.Attribute) and isinstance(other, cst.Attribute)):
                return False
            if one.attr.value != other.attr.value:
                return False
            one, other = one.value, other.value

    def uses(self, groups: set[Key | None]) -> Iterator[cst.BaseExpression]:
        """Yield the expressions that stand for an object of these groups, in order."""
        wanted = groups - {None}
        for node in self._source.nodes:
            if isinstance(node, cst.Name):
                parent = self._source.parents[node]
                named = isinstance(parent, cst.Param) and parent.name is node
                if not named and self._source.is_reference(node) and self.of(node) in wanted:
                    yield node
            elif isinstance(node, cst.Attribute) and self.of(node) in wanted:
                yield node

    @functools.cached_property
    def keys(self) -> list[Key]:
        """Every key of the file, in order; the shorter of two names first."""
        found: dict[Key, None] = {}
        for node in self._source.nodes:
            if isinstance(node, cst.Param):
                found[(self.scopes.of(node), node.name.value)] = None
            elif isinstance(node, cst.Attribute) or (isinstance(node, cst.Name) and self._source.is_reference(node)):
                key = self.key(node)
                if key is not None:
                    found[key] = None
        return sorted(found, key=lambda key: key[1].count("."))

    # -- who is the same -----------------------------------------------------------------------------------------

    def _join(self) -> None:
        for module, name, other, its in self._source.linked():
            if its and its not in self.scopes.functions:
                self._same((module, name), (other, its))
        for node in self._source.nodes:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._assign(target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value)
            elif isinstance(node, cst.Call):
                for arg, function, name in self.reached.arguments(node):
                    for value in peeled(arg.value):
                        self._same(self.key(value), (function, name))
            elif isinstance(node, cst.Attribute):
                self._attribute(node)

    def _assign(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            self._given_back(target, value)
            for place, one in enumerate(target.elements):
                for given in elements(value, len(target.elements), place):
                    self._assign(one.value, given)
                if isinstance(value, cst.Call):
                    self._returned(value, one.value, place, len(target.elements))
            return
        for part in peeled(value):
            self._same(self.key(target), self.key(part))
            if isinstance(part, cst.Call):
                self._returned(part, target, None, 0)

    def _given_back(self, target: cst.Tuple | cst.List, value: cst.BaseExpression) -> None:
        """``[a, b], c = amp.initialize([d, e], f)``: lists in lists."""
        values = parts(value)
        if len(values) == len(target.elements):
            for one, given in zip(target.elements, values, strict=True):
                if isinstance(one.value, cst.Tuple | cst.List):
                    self._assign(one.value, given)

    def _returned(self, call: cst.Call, target: cst.BaseExpression, place: int | None, many: int) -> None:
        for function in self.reached.functions(call):
            if function.name.value == "__init__":
                continue
            for node in walk(function.body):
                if isinstance(node, cst.Return) and node.value is not None and self.scopes.of(node) is function:
                    values = peeled(node.value) if place is None else elements(node.value, many, place)
                    for value in values:
                        self._same(self.key(target), self.key(value))

    def _attribute(self, node: cst.Attribute) -> None:
        """``trainer.optimizer`` is ``self.optimizer`` of the one class that has it, or that ``trainer`` is made of."""
        text = dotted(node)
        root, _, name = text.rpartition(".")
        if not root:
            return
        key = self.key(node)
        if "." in root:
            made = self.reached.classes_of(root)
            if len(made) == 1:
                self._same(key, (made[0], f"self.{name}"))
            return
        known = self._attributes.setdefault(name, [])
        if root == "self" and key is not None and key not in known and isinstance(key[0], cst.ClassDef):
            known.append(key)
        elif root != "self" and self._is_one(known) and self.scopes.binds(self.scopes.binding(node, root), root):
            self._same(key, known[0])
        if root == "self" and key is not None and isinstance(key[0], cst.ClassDef):
            for base in self._bases(key[0]):
                self._same(key, (base, text))

    def _is_one(self, keys: Sequence[Key]) -> bool:
        return len({self.group(key) for key in keys}) == 1

    def _bases(self, owner: cst.ClassDef) -> list[cst.ClassDef]:
        """Return the classes of these files that a class inherits from, directly."""
        found = []
        for base in owner.bases:
            name = dotted(base.value)
            link = self._source.link(owner, name.rpartition(".")[0] or name)
            module, wanted = link if link is not None else (self._source.root(owner), name)
            wanted = wanted or name.rpartition(".")[2]
            found += [one for one in self._classes.get(wanted, ()) if self._source.root(one) is module]
        return found

    def _same(self, one: Key | None, other: Key | None) -> None:
        first, second = self.group(one), self.group(other)
        if first is not None and second is not None and first != second:
            self._root[first] = second
