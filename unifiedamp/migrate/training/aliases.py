"""Which expressions of a file stand for the same object: assignments, arguments, attributes, wrappers and returns."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from ..nodes import dotted, walk
from ..source import Source
from .values import bindings, elements, parts, peeled

Key = tuple[Any, str]
_CONSTANTS = ("None", "True", "False")
_SPACE = cst.BaseParenthesizableWhitespace | cst.LeftParen | cst.RightParen
_EVERYWHERE = (
    "step", "update", "get", "append", "add", "items", "keys", "values", "reset", "save", "load", "to", "log",
)  # fmt: skip

_OF_MODULES = ("train", "eval")
MODEL_WORDS = ("model", "net", "network", "module")


class Aliases:
    """Groups of expressions that stand for one object.

    Args:
        source: the file.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._root: dict[Key, Key] = {}
        self._scopes: dict[cst.CSTNode, cst.CSTNode] = {}
        self._bound: dict[cst.CSTNode, set[str]] = {}
        self._attributes: dict[str, list[Key]] = {}
        self._functions: dict[str, list[cst.FunctionDef]] = {}
        self._classes: dict[str, list[cst.ClassDef]] = {}
        self._looked_up: set[str] = set()  # the variables whose classes are being asked for
        for owner in source.of(cst.ClassDef):
            self._classes.setdefault(owner.name.value, []).append(owner)
        self._find_scopes()
        self._join()

    def key(self, node: cst.CSTNode) -> Key | None:
        """Return what names the object of an expression: where its name is bound, and its text."""
        text = dotted(node)
        if not text or text in _CONSTANTS:
            return None
        root = text.partition(".")[0]
        scope = self._binding(node, root)
        if root == "self" and "." in text and isinstance(scope, cst.FunctionDef):
            return self.class_of(scope) or scope, text
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
                found[(self.scope(node), node.name.value)] = None
            elif isinstance(node, cst.Attribute) or (isinstance(node, cst.Name) and self._source.is_reference(node)):
                key = self.key(node)
                if key is not None:
                    found[key] = None
        return sorted(found, key=lambda key: key[1].count("."))

    def functions(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions of this file that a call may reach; of a class, its ``__init__``."""
        name = dotted(call.func)
        if not name:
            return []
        root, _, last = name.rpartition(".")
        link = self._source.link(call, root or name)
        if link is not None and not (root and link[1]):
            return [f for f in self._functions.get(link[1] or last, ()) if self._is_open(f, link[0])]
        found = self._functions.get(last, [])
        if not root and self._source.files:
            found = [f for f in found if self._source.root(f) is self._source.root(call)]
        if not root and not found:
            return [f for f in self._functions.get("__call__", ()) if self.class_of(f) in self._classes_of(name)]
        if not root:
            return [f for f in found if self.class_of(f) is None or f.name.value == "__init__"]
        owner = self._owner(call)
        if root == "self" and owner is not None:
            return [f for f in found if self.class_of(f) is owner] or [f for f in found if self.class_of(f) is not None]
        if root in self._source.imports or last in _EVERYWHERE:
            return []
        found = [f for f in found if self.class_of(f) is not None]
        if found and last in _OF_MODULES and not call.args and self._is_module(root):
            made = self._classes_of(root)
            return [f for f in found if self.class_of(f) in made]
        return found

    def _is_module(self, name: str) -> bool:
        """Whether a variable is a torch module by its name, or by what is asked of it: ``model.train()`` is torch's."""
        if name.rpartition(".")[2].rstrip("s").endswith(MODEL_WORDS):
            return True
        asked = [
            call.func for method in ("parameters", "state_dict", "zero_grad") for call in self._source.methods(method)
        ]
        return any(dotted(one.value) == name for one in asked if isinstance(one, cst.Attribute))

    def _is_open(self, function: cst.FunctionDef, module: cst.Module) -> bool:
        """Whether a file's importers can name a function: its own functions, and classes by their ``__init__``."""
        outside = self.class_of(function) is None or function.name.value == "__init__"
        return outside and self._source.root(function) is module

    def _owner(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class whose code a node is in."""
        return next((above for above in self._source.above(node) if isinstance(above, cst.ClassDef)), None)

    def _classes_of(self, name: str) -> list[cst.ClassDef]:
        """Return the classes of this file that a variable is made of."""
        if name in self._looked_up:
            return []  # wrap = wrap(other): what it is made of is asked already
        self._looked_up.add(name)
        made = [assign.value for assign in self._source.assigns(name) if isinstance(assign.value, cst.Call)]
        inits = [f for value in made for f in self.functions(value) if f.name.value == "__init__"]
        self._looked_up.discard(name)
        return [owner for owner in map(self.class_of, inits) if owner is not None]

    def arguments(self, call: cst.Call) -> Iterator[tuple[cst.Arg, cst.FunctionDef, str]]:
        """Yield each argument that a function of this file takes, with the function and its parameter's name."""
        for function in self.functions(call):
            names = self.positional(function)
            position = 0
            for arg in call.args:
                if arg.keyword is not None:
                    yield arg, function, arg.keyword.value
                elif arg.star:
                    position = len(names)
                else:
                    if position < len(names):
                        yield arg, function, names[position]
                    position += 1

    def positional(self, function: cst.FunctionDef) -> list[str]:
        """Return the names that a function's arguments fill by position, without ``self``."""
        names = [p.name.value for p in (*function.params.posonly_params, *function.params.params)]
        return names[1:] if self.class_of(function) is not None and names[:1] in (["self"], ["cls"]) else names

    def calls(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Return the calls of this file that may reach a function."""
        return self._callers.get(function, [])

    @functools.cached_property
    def _callers(self) -> dict[cst.FunctionDef, list[cst.Call]]:
        found: dict[cst.FunctionDef, list[cst.Call]] = {}
        for call in self._source.of(cst.Call):
            for function in dict.fromkeys(self.functions(call)):
                found.setdefault(function, []).append(call)
        return found

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class that a method is one of."""
        for above in self._source.above(node):
            if isinstance(above, cst.ClassDef):
                return above
            if isinstance(above, cst.FunctionDef):
                return None
        return None

    # -- who is bound where --------------------------------------------------------------------------------------

    def scope(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the function around a node, or the module."""
        return self._scopes.get(node) or self._source.root(node)

    def binds(self, scope: cst.CSTNode, name: str) -> bool:
        """Whether a function, or the module, gives a name its value."""
        return name in self._bound.get(scope, ())

    def _binding(self, node: cst.CSTNode, name: str) -> cst.CSTNode:
        scope = self.scope(node)
        while not isinstance(scope, cst.Module):
            if name in self._bound.get(scope, ()):
                return scope
            scope = self.scope(scope)
        return scope

    def _find_scopes(self) -> None:
        declared: dict[cst.CSTNode, set[str]] = {}
        for node in self._source.nodes:
            parent = self._source.parents.get(node)
            if parent is None:
                self._scopes[node] = node
            else:
                inside = isinstance(parent, cst.FunctionDef) and node is not parent.name
                self._scopes[node] = parent if inside else self._scopes[parent]
            scope = self.scope(node)
            if isinstance(node, cst.FunctionDef):
                self._functions.setdefault(node.name.value, []).append(node)
                owner = self.class_of(node)
                if owner is not None and node.name.value == "__init__":
                    self._functions.setdefault(owner.name.value, []).append(node)
            if isinstance(node, cst.Param):
                self._bound.setdefault(scope, set()).add(node.name.value)
            elif isinstance(node, cst.Global | cst.Nonlocal):
                declared.setdefault(scope, set()).update(item.name.value for item in node.names)
            else:
                self._bound.setdefault(scope, set()).update(bindings(node))
        for scope, names in declared.items():
            self._bound[scope] -= names

    # -- who is the same -----------------------------------------------------------------------------------------

    def _join(self) -> None:
        for module, name, other, its in self._source.linked():
            if its and its not in self._functions:
                self._same((module, name), (other, its))
        for node in self._source.nodes:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._assign(target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value)
            elif isinstance(node, cst.Call):
                for arg, function, name in self.arguments(node):
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
        for function in self.functions(call):
            if function.name.value == "__init__":
                continue
            for node in walk(function.body):
                if isinstance(node, cst.Return) and node.value is not None and self.scope(node) is function:
                    values = peeled(node.value) if place is None else elements(node.value, many, place)
                    for value in values:
                        self._same(self.key(target), self.key(value))

    def _attribute(self, node: cst.Attribute) -> None:
        """``trainer.optimizer`` is ``self.optimizer`` of the one class that has it."""
        text = dotted(node)
        root, _, name = text.rpartition(".")
        if not root or "." in root:
            return
        key = self.key(node)
        known = self._attributes.setdefault(name, [])
        if root == "self" and key is not None and key not in known and isinstance(key[0], cst.ClassDef):
            known.append(key)
        elif root != "self" and self._is_one(known) and root in self._bound.get(self._binding(node, root), ()):
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
