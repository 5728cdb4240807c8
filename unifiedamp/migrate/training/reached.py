"""Which functions of a file its calls may reach, and what they give their parameters."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import libcst as cst

from ..nodes import dotted
from ..source import Source
from .scopes import Scopes

MODEL_WORDS = ("model", "net", "network", "module")
_EVERYWHERE = (
    "step", "update", "get", "append", "add", "items", "keys", "values", "reset", "save", "load", "to", "log",
)  # fmt: skip
_OF_MODULES = ("train", "eval")


class Reached:
    """The functions that a file's calls may reach.

    Args:
        source: the file.
        scopes: its functions.
    """

    def __init__(self, source: Source, scopes: Scopes) -> None:
        self._source, self._scopes = source, scopes
        self._looked_up: set[str] = set()  # the variables whose classes are being asked for
        self._made: dict[str, list[cst.ClassDef]] = {}

    def functions(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions of this file that a call may reach; of a class, its ``__init__``."""
        partial = self._partial(call)
        return self._named(call, call.func) if partial is None else self._named(partial, partial.args[0].value)

    def _partial(self, call: cst.Call) -> cst.Call | None:
        """Return what makes the partial function that is called: ``backward = partial(loss_backward, fp16)``."""
        name = dotted(call.func)
        made = [assign for assign in self._source.assigns(name) if self._is_bound_by(assign, call, name)]
        value = made[0].value if len(made) == 1 else None
        return value if isinstance(value, cst.Call) and self._is_partial(value) else None

    def _is_bound_by(self, assign: cst.Assign, node: cst.CSTNode, name: str) -> bool:
        """Whether an assignment gives ``name`` its value where ``node`` stands."""
        return "." in name or self._scopes.of(assign) is self._scopes.binding(node, name)

    def _is_partial(self, call: cst.Call) -> bool:
        return self._source.meaning(call.func) == "functools.partial" and bool(call.args)

    def _named(self, call: cst.Call, func: cst.BaseExpression) -> list[cst.FunctionDef]:
        """Return the functions that ``func`` may be where it is called, or handed on, in ``call``."""
        name = dotted(func)
        if not name:
            return []
        root, _, last = name.rpartition(".")
        link = self._source.link(call, root or name)
        if link is not None and not (root and link[1]):
            return [f for f in self._scopes.functions.get(link[1] or last, ()) if self._is_open(f, link[0])]
        found = self._scopes.functions.get(last, [])
        if not root and self._source.files:
            found = [f for f in found if self._source.root(f) is self._source.root(call)]
        if not root and not found:
            return [
                f
                for f in self._scopes.functions.get("__call__", ())
                if self._scopes.class_of(f) in self.classes_of(name)
            ]
        if not root:
            return [f for f in found if self._scopes.class_of(f) is None or f.name.value == "__init__"]
        owner = self._owner(call)
        if root == "self" and owner is not None:
            return [f for f in found if self._scopes.class_of(f) is owner] or [
                f for f in found if self._scopes.class_of(f) is not None
            ]
        if root in self._source.imports or last in _EVERYWHERE:
            return []
        found = [f for f in found if self._scopes.class_of(f) is not None]
        if found and last in _OF_MODULES and not call.args and self._is_module(root):
            made = self.classes_of(root)
            return [f for f in found if self._scopes.class_of(f) in made]
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
        outside = self._scopes.class_of(function) is None or function.name.value == "__init__"
        return outside and self._source.root(function) is module

    def _owner(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class whose code a node is in."""
        return next((above for above in self._source.above(node) if isinstance(above, cst.ClassDef)), None)

    def classes_of(self, name: str) -> list[cst.ClassDef]:
        """Return the classes of this file that a variable is made of."""
        if name in self._made or name in self._looked_up:  # wrap = wrap(other): what it is made of is asked already
            return self._made.get(name, [])
        self._looked_up.add(name)
        made = [assign.value for assign in self._source.assigns(name) if isinstance(assign.value, cst.Call)]
        inits = [f for value in made for f in self.functions(value) if f.name.value == "__init__"]
        self._looked_up.discard(name)
        found = [owner for owner in map(self._scopes.class_of, inits) if owner is not None]
        if not self._looked_up:
            self._made[name] = found
        return found

    def arguments(self, call: cst.Call) -> Iterator[tuple[cst.Arg, cst.FunctionDef, str]]:
        """Yield each argument that a function of this file takes, with the function and its parameter's name."""
        if self._is_partial(call):
            for function in self._named(call, call.args[0].value):
                yield from self._filled(call.args[1:], function, 0)
            return
        partial = self._partial(call)
        taken = 0 if partial is None else sum(arg.keyword is None for arg in partial.args[1:])
        for function in self.functions(call):
            yield from self._filled(call.args, function, taken)

    def _filled(
        self, args: Sequence[cst.Arg], function: cst.FunctionDef, position: int
    ) -> Iterator[tuple[cst.Arg, cst.FunctionDef, str]]:
        """Yield the parameters that arguments fill, the first of them at ``position``."""
        names = self.positional(function)
        for arg in args:
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
        return names[1:] if self._scopes.class_of(function) is not None and names[:1] in (["self"], ["cls"]) else names

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
