"""Functions that some calls give no scaler: ``validate(model, loader, scaler=None)`` of one that trains, too."""

from __future__ import annotations

import libcst as cst

from ..imports import Import
from ..nodes import dotted, parameters
from ..source import Statement
from ..training.aliases import Aliases, Key
from ..training.loops import Loops
from ..work import Work
from .decided import Constants, decided, given_constants, may_run
from .entered import entered, switch_at
from .scaler import Scaler
from .uses import is_question


class Absent:
    """The calls that give a function None where others give it the scaler.

    Such a call keeps its None where, without a scaler, the function neither trains nor computes in a region. Where it
    computes in one all the same, the call gives it the session. Everything else is refused.

    Args:
        work: takes the changes.
        aliases: who is who.
        scaler: what the session replaces.
        loops: the loops, rewritten.
        regions: the autocast calls that see the session.
    """

    def __init__(self, work: Work, aliases: Aliases, scaler: Scaler, loops: Loops, regions: list[cst.Call]) -> None:
        self._work, self._source, self._aliases, self._scaler = work, work.source, aliases, scaler
        self._plain = [*(site.call for site in loops.plain), *loops.plain_steps]
        self._entered = {item: call for call in regions for item in entered(work.source, call)}
        self._names: dict[cst.FunctionDef, str] = {}
        self._importing: set[cst.Module] = set()
        keys = {key for key in map(aliases.key, scaler.uses) if key is not None}
        keys |= {(f, name) for f in scaler.functions for name in parameters(f) if self._is_scaler((f, name))}
        for function, name in sorted(keys, key=lambda key: (work.source.order[key[0]], key[1])):
            if isinstance(function, cst.FunctionDef) and name in parameters(function):
                for call in aliases.reached.calls(function):
                    self._take(function, name, call)
        self._answer()

    def _is_scaler(self, key: Key) -> bool:
        return self._aliases.group(key) in self._scaler.groups

    def otherwise(self, item: cst.WithItem) -> tuple[str, str] | None:
        """Return the condition under which a region's function has a session, and what it enters without one."""
        for function, name in self._names.items():
            if self._source.inside(item, function) and self._is_off(item, {name: None}):
                return f"{self._work.names.amp} is not None", f"{self._nullcontext(item)}()"
        return None

    def _nullcontext(self, node: cst.CSTNode) -> str:
        """Return what ``contextlib.nullcontext`` is called where a node stands; import it if nothing does."""
        path = self._source.path(node)
        imports = self._source.files[path].imports if path else self._source.imports
        for name, meaning in imports.items():
            if meaning in ("contextlib", "contextlib.nullcontext"):
                return f"{name}.nullcontext" if meaning == "contextlib" else name
        module = self._source.root(node)
        if module not in self._importing:
            self._importing.add(module)
            first = next(one for one in module.body if _imports(one))
            self._work.edits.before(first, "import contextlib")
        return "contextlib.nullcontext"

    def _take(self, function: cst.FunctionDef, name: str, call: cst.Call) -> None:
        """Decide what becomes of one call."""
        given = next((a for a, f, its in self._aliases.reached.arguments(call) if f is function and its == name), None)
        starred = any(arg.star for arg in call.args)
        if (given is not None and dotted(given.value) != "None") or (given is None and starred):
            return
        constants = given_constants(self._aliases, function, call)
        runs = [item for item in self._items(function) if may_run(self._source, item, function, constants)]
        if (
            name in constants
            and not self._trains(function, constants)
            and not self._hands_on(function, name, constants)
        ):
            if all(self._is_off(item, constants) for item in runs):
                self._names[function] = name
                return
            amp = self._scaler.seen_from(call)
            if amp is not None and not self._asks(function, name, constants):
                self._give(call, given, amp)
                return
        said = f"{dotted(call.func)} is called " + (f"without its {name}" if given is None else f"with {name}=None")
        self._work.block(call, said, f"give it a session, which takes the place of {name}=None too")

    def _items(self, function: cst.FunctionDef) -> list[cst.WithItem]:
        return [item for item in self._entered if self._source.inside(item, function)]

    def _is_off(self, item: cst.WithItem, constants: Constants) -> bool:
        """Whether a region is surely off."""
        switch = switch_at(self._source, self._entered[item], item)
        return switch is not None and decided(cst.parse_expression(switch), constants) is False

    def _trains(self, function: cst.FunctionDef, constants: Constants) -> bool:
        """Whether steps without a scaler, which are the session's now, may be taken."""
        mine = [call for call in self._plain if self._source.inside(call, function)]
        return any(may_run(self._source, call, function, constants) for call in mine)

    def _hands_on(self, function: cst.FunctionDef, name: str, constants: Constants) -> bool:
        """Whether what may be None is given to another function, or kept."""
        kept = (cst.Arg, cst.Assign, cst.AnnAssign, cst.Return, cst.Element, cst.DictElement, cst.Yield)
        mine = [use for use in self._uses(function, name) if isinstance(self._source.parents[use], kept)]
        return any(may_run(self._source, use, function, constants) for use in mine)

    def _asks(self, function: cst.FunctionDef, name: str, constants: Constants) -> bool:
        """Whether the scaler is looked at, or used."""
        return any(may_run(self._source, use, function, constants) for use in self._uses(function, name))

    def _uses(self, function: cst.FunctionDef, name: str) -> list[cst.BaseExpression]:
        return [use for use in self._scaler.uses if self._aliases.key(use) == (function, name)]

    def _give(self, call: cst.Call, given: cst.Arg | None, amp: str) -> None:
        if given is not None:
            self._work.edits.expression(given.value, amp)
            return
        added = cst.Arg(cst.parse_expression(amp), cst.Name(self._work.names.amp), equal=_EQUAL)
        self._work.edits.change(call, lambda new: _with_argument(new, added))

    def _answer(self) -> None:
        """Let questions for the scaler be questions for the session that may be None, too."""
        for function, name in self._names.items():
            for use in self._uses(function, name):
                parent = self._source.parents[use]
                asked = parent if isinstance(parent, cst.Comparison) else use
                if self._work.edits.covers(self._source, self._source.parents[asked]):
                    continue
                if is_question(asked if asked is parent else parent, use):
                    self._ask(function, use, parent, asked)

    def _ask(
        self, function: cst.FunctionDef, use: cst.BaseExpression, parent: cst.CSTNode, asked: cst.BaseExpression
    ) -> None:
        amp, there = self._scaler.name(use), self._scaler.there(use)
        none = isinstance(parent, cst.Comparison) and isinstance(parent.comparisons[0].operator, cst.Is | cst.Equal)
        if there == f"{amp} is not None":
            return
        code = f"{amp} is None or not {there}" if none else f"{amp} is not None and {there}"
        around = self._source.parents[asked]
        alone = isinstance(around, cst.If | cst.While | cst.IfExp) and around.test is asked
        alone |= not none and isinstance(around, cst.BooleanOperation) and isinstance(around.operator, cst.And)
        self._work.edits.expression(asked, code if alone else f"({code})")


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _with_argument(call: cst.Call, added: cst.Arg) -> cst.Call:
    """Return a call with an argument more, behind its others."""
    args = list(call.args)
    if args and isinstance(args[-1].comma, cst.MaybeSentinel):
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return call.with_changes(args=[*args, added])


def _imports(statement: cst.CSTNode) -> bool:
    """Whether a statement imports something; what ``from __future__`` brings must stay in front."""
    body = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    future = any(isinstance(one, cst.ImportFrom) and one.module and dotted(one.module) == "__future__" for one in body)
    return isinstance(statement, Statement) and not future and any(isinstance(one, Import) for one in body)
