"""A Python file as ``migrate`` reads it: its syntax tree, what encloses what, and what names mean by its imports."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from typing import TypeVar, cast

import libcst as cst

from .index import Index, is_reference
from .nodes import dotted, parameters
from .splitter import Splitter

Statement = cst.BaseStatement
Block = cst.IndentedBlock | cst.Module
_Node = TypeVar("_Node", bound=cst.CSTNode)


class Source:
    """A parsed file.

    Args:
        content: the file's bytes.

    Attributes:
        module: the tree; a line that holds several statements of interest has been split.
        nodes: all nodes, in the order of the text.

    Raises:
        libcst.ParserSyntaxError: it is not Python.
    """

    def __init__(self, content: bytes) -> None:
        original = cst.parse_module(content)
        splitter = Splitter(original)
        self.module = cst.ensure_type(original.visit(splitter), cst.Module)
        self._lines = splitter.lines
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.nodes: list[cst.CSTNode] = []
        self._scopes: dict[cst.CSTNode, cst.FunctionDef | cst.Module] = {}
        self._enter(self.module)
        self.order = {node: index for index, node in enumerate(self.nodes)}
        self._by_meaning: dict[str, list[cst.Call]] = {}
        self._places: dict[cst.CSTNode, dict[cst.CSTNode, int]] = {}
        self._index = Index(self.nodes, self.parents, self._scopes)
        self.imports = dict(self._imported())
        self.imports |= dict(self._renamed())
        self.files: dict[str, Source] = {}
        self._links: Mapping[tuple[str, str], tuple[str, str]] = {}
        self._starts: list[int] = []

    @classmethod
    def joined(cls, files: Mapping[str, Source], links: Mapping[tuple[str, str], tuple[str, str]]) -> Source:
        """Return several files as one: each keeps its tree, its imports and its lines.

        Args:
            files: path → file.
            links: (file, name in it) → (file, name) that an import makes of it; see ``program.links``.
        """
        parts, self = list(files.values()), cls(b"")
        self.files, self._links, self.module, self.nodes = dict(files), links, parts[0].module, []
        for part in parts:
            self._starts.append(len(self.nodes))
            self.nodes += part.nodes
            self._lines |= part._lines
            self.parents |= part.parents
            self._scopes |= part._scopes
            self.imports |= part.imports
        self.order = {node: index for index, node in enumerate(self.nodes)}
        self._index = Index(self.nodes, self.parents, self._scopes)
        return self

    @cached_property
    def text(self) -> bytes:
        """The module's text, with the lines that were split."""
        return self.module.bytes

    # -- several files -------------------------------------------------------------------------------------------

    def path(self, node: cst.CSTNode) -> str:
        """Return the file that a node is in; ``""`` where there is but one."""
        return list(self.files)[bisect_right(self._starts, self.order[node]) - 1] if self.files else ""

    def root(self, node: cst.CSTNode) -> cst.Module:
        """Return the module that a node is in."""
        return self.files[self.path(node)].module if self.files else self.module

    def link(self, node: cst.CSTNode, name: str) -> tuple[cst.Module, str] | None:
        """Return the other file's module that a name means where ``node`` stands, and the name in it, if any."""
        found = self._links.get((self.path(node), name)) if self.files else None
        return (self.files[found[0]].module, found[1]) if found is not None else None

    def linked(self) -> Iterator[tuple[cst.Module, str, cst.Module, str]]:
        """Yield each name that a file imports from another one: module, name, the other module, the name in it."""
        for (path, name), (other, its) in self._links.items():
            yield self.files[path].module, name, self.files[other].module, its

    def _enter(self, root: cst.Module) -> None:
        waiting: list[cst.CSTNode] = [root]
        self._scopes[root] = root
        while waiting:
            node = waiting.pop()
            self.nodes.append(node)
            scope = node if isinstance(node, cst.FunctionDef) else self._scopes[node]
            children = node.children
            for child in children:
                self.parents[child] = node
                self._scopes[child] = scope
            waiting.extend(reversed(children))

    def _imported(self) -> Iterator[tuple[str, str]]:
        imports: list[cst.Import | cst.ImportFrom] = [*self.of(cst.Import), *self.of(cst.ImportFrom)]
        for node in sorted(imports, key=self.order.__getitem__):
            if isinstance(node, cst.Import):
                for alias in node.names:
                    name = dotted(alias.name)
                    bound = alias.evaluated_alias
                    yield (bound, name) if bound else (name.partition(".")[0], name.partition(".")[0])
            elif isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
                for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
                    name = alias.evaluated_name
                    yield alias.evaluated_alias or name, f"{dotted(node.module)}.{name}"

    def _renamed(self) -> Iterator[tuple[str, str]]:
        """Yield the names that stand for a part of an import all through the file: ``keras = tf.keras``."""
        for assign in self.of(cst.Assign):
            name, value = dotted(assign.targets[0].target), assign.value
            once = len(assign.targets) == 1 and len(self._index.assigns[name]) == 1 and name not in self.imports
            if once and "." not in name and isinstance(value, cst.Attribute) and self.scope(assign) is self.module:
                root, _, rest = dotted(value).partition(".")
                if root in self.imports and rest:
                    yield name, f"{self.imports[root]}.{rest}"

    def of(self, kind: type[_Node]) -> list[_Node]:
        """Return the nodes that are of this class itself, in order."""
        return [cast(_Node, node) for node in self._index.kinds.get(kind, ())]

    # -- what a node says ----------------------------------------------------------------------------------------

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a node."""
        return self.module.code_for_node(node)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line that a node begins on, from 1."""
        waiting = [node]
        while waiting:
            one = waiting.pop(0)
            if one in self._lines:
                return self._lines[one]
            waiting[:0] = one.children
        return 1

    def meaning(self, node: cst.CSTNode) -> str:
        """Return the dotted name of an expression with the imports' aliases resolved, or ``""``."""
        name = dotted(node)
        root, _, rest = name.partition(".")
        imports = self.imports
        if self.files and root in imports:
            imports = self.files[self.path(node)].imports
        if root not in imports:
            return name
        return f"{imports[root]}.{rest}" if rest else imports[root]

    def calls(self, *meanings: str) -> list[cst.Call]:
        """Return the calls of functions that mean one of ``meanings``, in order."""
        if not self._by_meaning:
            for call in self.of(cst.Call):
                self._by_meaning.setdefault(self.meaning(call.func), []).append(call)
        found = [call for meaning in dict.fromkeys(meanings) for call in self._by_meaning.get(meaning, ())]
        return sorted(found, key=self.order.__getitem__)

    def methods(self, name: str) -> list[cst.Call]:
        """Return the calls ``<anything>.name(...)``, in order."""
        return list(self._index.methods.get(name, ()))

    def scaled(self) -> list[cst.Call]:
        """Return the calls ``scaler.scale(loss)`` of ``scaler.scale(loss).backward()``, in order."""
        around = [(call, self.parents[call]) for call in self.methods("scale")]
        return [call for call, node in around if isinstance(node, cst.Attribute) and node.attr.value == "backward"]

    def uses(self, text: str) -> list[cst.BaseExpression]:
        """Return the expressions that are ``text``, a name or ``self.name``: no attributes, keywords or imports."""
        return list(self._index.uses.get(text, ()))

    def is_reference(self, name: cst.Name) -> bool:
        """Whether a name is a variable, and no attribute, keyword or part of an import."""
        return is_reference(name, self.parents[name])

    # -- what encloses it ----------------------------------------------------------------------------------------

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what encloses a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: cst.CSTNode) -> Statement:
        """Return the innermost statement around a node, or itself."""
        for one in (node, *self.above(node)):
            if isinstance(one, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                return one
        raise ValueError("a node outside any statement")

    def first_line(self, node: cst.CSTNode) -> str:
        """Return the first line of the code of the statement around a node, without the comments before it."""
        lines = [one.strip() for one in self.code(self.statement(node)).splitlines()]
        return next(one for one in lines if one and not one.startswith("#"))

    def simple(self, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
        """Return the one small statement of the line around a node, or None where there is no such line."""
        line = self.statement(node)
        return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None

    def is_alone(self, call: cst.Call) -> bool:
        """Whether a call is a statement by itself."""
        simple = self.simple(call)
        return isinstance(simple, cst.Expr) and simple.value is call

    def assignment(self, call: cst.Call) -> cst.Assign | None:
        """Return the assignment whose value is this call and nothing else."""
        simple = self.simple(call)
        return simple if isinstance(simple, cst.Assign) and simple.value is call else None

    def block(self, statement: cst.CSTNode) -> Block:
        """Return the block that a statement stands in."""
        for one in self.above(statement):
            if isinstance(one, cst.IndentedBlock | cst.Module):
                return one
        raise ValueError("a statement outside any block")

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """Return the function around a node, or the module."""
        return self._scopes[node]

    def in_block(self, node: cst.CSTNode, block: Block) -> Statement | None:
        """Return the statement of ``block`` that encloses a node, or None."""
        for one in (node, *self.above(node)):
            if isinstance(one, Statement) and self.parents.get(one) is block:
                return one
        return None

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Whether ``node`` is ``outer`` or within it."""
        return node is outer or any(one is outer for one in self.above(node))

    def exclusive(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Whether two nodes stand in different branches of one ``if``."""
        choices = [above for above in self.above(other) if isinstance(above, cst.If) and self.inside(one, above)]
        return any(self.inside(one, choice.body) != self.inside(other, choice.body) for choice in choices)

    def after(self, statement: Statement) -> list[Statement]:
        """Return the statements that follow in the same block."""
        block = self.block(statement)
        if block not in self._places:
            self._places[block] = {each: place for place, each in enumerate(block.body)}
        return [s for s in block.body[self._places[block][statement] + 1 :] if isinstance(s, Statement)]

    # -- who assigns what ----------------------------------------------------------------------------------------

    def assigns(self, text: str) -> list[cst.Assign]:
        """Return the plain assignments ``text = ...``, in order."""
        return list(self._index.assigns.get(text, ()))

    def assigned_in(self, scope: cst.CSTNode) -> list[cst.Assign]:
        """Return a function's own assignments, or the module's, in order."""
        return list(self._index.assigned.get(scope, ()))

    def functions(self) -> Mapping[str, cst.FunctionDef]:
        """Return name → function defined in this file; for a class, its ``__init__``."""
        return self._index.functions

    def bound_in(self, text: str, scope: cst.FunctionDef | cst.Module) -> bool:
        """Whether a name is a parameter of ``scope`` or assigned in it."""
        if isinstance(scope, cst.FunctionDef) and text in parameters(scope):
            return True
        return (text, scope) in self._index.bound

    def names(self) -> Set[str]:
        """Return every name in the file."""
        return self._index.names
