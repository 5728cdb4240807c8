"""A session that one file makes and functions of others use: it becomes their parameter, all the way down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ..edits import Edits
from ..nodes import dotted
from ..sessions import declare_global
from ..source import Source
from .aliases import Aliases

Problem = tuple[cst.CSTNode, str, str]


class Handover:
    """Hands a session to the functions that use it without seeing it.

    Args:
        result: the migrated files.
        made: the line that makes the session.

    Attributes:
        edits: the parameters and arguments.
        problems: the functions that cannot be handed it.
    """

    def __init__(self, result: Source, made: cst.Assign) -> None:
        self._source, self._aliases = result, Aliases(result)
        self._made, self._name = made, dotted(made.targets[0].target)
        self._shared = False
        self.edits, self.problems = Edits(), list[Problem]()
        self._handed: set[cst.CSTNode] = set()
        self._calls: set[cst.Call] = set()
        for use in result.uses(self._name):
            self._need(use)

    def _need(self, node: cst.CSTNode) -> None:
        waiting: list[cst.CSTNode] = [node]
        while waiting:
            node = waiting.pop()
            if self._is_seen(node) or self._is_shared(node):
                continue
            function = self._outermost(node)
            if function is None:
                self.problems.append((node, f"{self._name} is used outside functions, in a file that does not make it",
                                      "move this code into a function that is given the session"))  # fmt: skip
            elif function not in self._handed:
                self._handed.add(function)
                waiting += self._hand(function)

    def _is_shared(self, node: cst.CSTNode) -> bool:
        """Make the session a global of the file that makes it, if that is where ``node`` stands."""
        maker = self._source.scope(self._made)
        if self._source.root(node) is not self._source.root(self._made) or not isinstance(maker, cst.FunctionDef):
            return False
        if not self._shared:
            declare_global(self.edits, maker, self._name)
        self._shared = True
        return True

    def _is_seen(self, node: cst.CSTNode) -> bool:
        scope = self._aliases.scopes.of(node)
        while True:
            if scope in self._handed or self._aliases.scopes.binds(scope, self._name):
                return True
            if isinstance(scope, cst.Module):
                return any(self._makes(one, scope) for one in self._source.of(cst.Global))
            scope = self._aliases.scopes.of(scope)

    def _makes(self, node: cst.Global, module: cst.Module) -> bool:
        named = any(item.name.value == self._name for item in node.names)
        return named and self._source.root(node) is module

    def _outermost(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the function around a node that no other function holds."""
        found = [above for above in self._source.above(node) if isinstance(above, cst.FunctionDef)]
        return found[-1] if found else None

    def _hand(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Add the parameter to a function, and the argument to its calls; return these."""
        name = function.name.value
        calls = self._aliases.reached.calls(function)
        odd = [use for use in self._references(function) if not self._is_call(use)]
        if odd or not calls:
            what = f"{name} needs the session, and " + (
                f"`{self._source.code(self._source.statement(odd[0])).strip()}` uses it without a call"
                if odd else "no file migrated with it calls it"
            )  # fmt: skip
            self.problems.append((function, what, f"give {name} the session as a parameter by hand"))
            return []
        self.edits.change(function.params, lambda new: with_parameter(new, self._name))
        for call in calls:
            if call not in self._calls:
                self._calls.add(call)
                self.edits.change(call, lambda new: with_argument(new, self._name))
        return calls

    def _references(self, function: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
        """Yield the uses of a function's name; of a method, none, since other objects' methods may be called so."""
        if self._aliases.scopes.class_of(function) is None:
            module = self._source.root(function)
            for use in self._source.uses(function.name.value):
                link = self._source.link(use, function.name.value)
                if self._source.root(use) is module or (link is not None and link[0] is module):
                    yield use

    def _is_call(self, use: cst.BaseExpression) -> bool:
        parent = self._source.parents[use]
        return isinstance(parent, cst.Call) and parent.func is use


def with_parameter(params: cst.Parameters, name: str) -> cst.Parameters:
    """Add a parameter behind the others, which calls give by its name where others have defaults."""
    made = cst.Param(cst.Name(name))
    positional = [*params.posonly_params, *params.params]
    plain = not isinstance(params.star_arg, cst.Param | cst.ParamStar) and not params.star_kwarg
    if plain and all(one.default is None for one in positional):
        return params.with_changes(params=_appended(params.params, made))
    star = params.star_arg if isinstance(params.star_arg, cst.Param | cst.ParamStar) else cst.ParamStar()
    kwonly = [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in params.kwonly_params]
    last = [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in params.params[-1:]]
    return params.with_changes(params=[*params.params[:-1], *last], star_arg=star, kwonly_params=[*kwonly, made])


def _appended(params: Sequence[cst.Param], made: cst.Param) -> list[cst.Param]:
    """Add a parameter behind the others, on a separate line where they have one each."""
    if not params or isinstance(params[-1].comma, cst.MaybeSentinel):
        return [*params, made]
    between = params[-2].comma if len(params) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*params[:-1], params[-1].with_changes(comma=between), made.with_changes(comma=params[-1].comma)]


def with_argument(call: cst.Call, name: str) -> cst.Call:
    """Give a call what ``name`` names for the parameter of that name."""
    assert dotted(call.func)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    made = cst.Arg(cst.Name(name), keyword=cst.Name(name), equal=equal)
    args = list(call.args)
    if args and isinstance(args[-1].comma, cst.MaybeSentinel):
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    elif args:
        made = made.with_changes(comma=args[-1].comma)
        space = args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        args[-1] = args[-1].with_changes(comma=space)
    return call.with_changes(args=[*args, made])
