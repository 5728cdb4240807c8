"""A file's ``GradScaler``: where it is made, behind which flag, and the names that it goes by."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from ..nodes import dotted, literal, parameters, walk
from ..source import Statement
from ..training.aliases import Aliases, Key
from ..work import Work
from .arguments import SCALERS, enabled_in, enabled_of, settings_of


@dataclass(frozen=True)
class Made:
    """A line that gives a scaler its value.

    Attributes:
        assign: the assignment.
        call: the call that makes the scaler; None where the line says ``None``.
        switch: the code of the condition of ``GradScaler() if condition else None``.
    """

    assign: cst.Assign | cst.AnnAssign
    call: cst.Call | None
    switch: str | None = None


class Scaler:
    """One or more GradScalers that become one session, followed through the file.

    Args:
        work: the file.
        aliases: who is who in it.
        made: the lines that make them.

    Attributes:
        made: those lines, in order.
        call: the first call that makes one.
    """

    def __init__(self, work: Work, aliases: Aliases, made: Sequence[Made]) -> None:
        self._work, self._source, self._aliases = work, work.source, aliases
        self.made = made
        self.call = next(one.call for one in made if one.call is not None)
        self.groups = {aliases.of(target_of(one.assign)) for one in made} - {None}
        self.uses = list(aliases.uses(self.groups))
        self._names = {key: self._renamed(key[1]) for key in map(aliases.key, self.uses) if key is not None}

    @property
    def first(self) -> Made:
        """The first line that makes a scaler."""
        return next(one for one in self.made if one.call is not None)

    @property
    def session(self) -> str:
        """What the session is called where it is made."""
        return self.name(target_of(self.first.assign))

    @property
    def functions(self) -> set[cst.FunctionDef]:
        """The functions that have a parameter for it."""
        return {
            scope for scope, name in self._names if isinstance(scope, cst.FunctionDef) and name in parameters(scope)
        }

    def name(self, use: cst.BaseExpression) -> str:
        """Return what the session is called in place of a use of the scaler."""
        return self._renamed(dotted(use))

    @property
    def always(self) -> bool:
        """Whether there is a scaler with the flag off too, as ``GradScaler(enabled=flag)``: it is never None."""
        return enabled_of(self._source, self.call) is not None and all(
            one.call is not None and one.switch is None for one in self.made
        )

    def there(self, use: cst.BaseExpression) -> str:
        """Return the code that asks, in place of a use of the scaler, whether there is one."""
        name = self.name(use)
        return f"{name} is not None" if self.always else f"{name}.loss_scale_settings.enabled"

    def seen_from(self, node: cst.CSTNode) -> str | None:
        """Return what the session is called where ``node`` stands, or None."""
        order, module = self._source.order, self._source.root(node)
        scopes: list[cst.CSTNode] = [one for one in self._source.above(node) if isinstance(one, cst.FunctionDef)]
        owners: list[cst.CSTNode] = [
            owner
            for scope in scopes
            if isinstance(scope, cst.FunctionDef) and parameters(scope)[:1] == ["self"]
            for owner in (self._aliases.scopes.class_of(scope),)
            if owner is not None
        ]
        found: dict[cst.CSTNode, str] = {key[0]: name for key, name in self._names.items()}
        for scope in [*scopes, *owners, module]:
            if scope not in found:
                continue
            assigns = [one.assign for one in self.made if self._source.scope(one.assign) is scope]
            if assigns and scopes[:1] == [scope] and order[node] < min(order[a] for a in assigns):
                continue
            if assigns and not scopes and order[node] < min(order[a] for a in assigns):
                continue
            return found[scope]
        return None

    def rename(self) -> None:
        """Call the session by its name wherever the scaler is still named."""
        edits = self._work.edits
        for use in self.uses:
            if not edits.covers(self._source, use):
                edits.expression(use, self.name(use))
        self._rename_types()
        keys = {key for key in self._names if isinstance(key[0], cst.FunctionDef)}
        self._pass_once(keys)
        for node in self._source.nodes:
            if isinstance(node, cst.Param) and (self._aliases.scopes.of(node), node.name.value) in keys:
                edits.change(node, lambda new: new.with_changes(name=cst.Name(self._work.names.amp)))
            elif isinstance(node, cst.Call):
                self._rename_keywords(node, keys)

    def _rename_types(self) -> None:
        """Write the session's type where ``GradScaler`` was one: ``scaler: Optional[GradScaler] = None``."""
        edits, source = self._work.edits, self._source
        for annotation in source.of(cst.Annotation):
            for node in walk(annotation):
                if not isinstance(node, cst.Attribute | cst.Name) or source.meaning(node) not in SCALERS:
                    continue
                if not isinstance(source.parents[node], cst.Attribute) and not edits.covers(source, node):
                    edits.expression(node, f"{self._work.names.ua}.Amp")

    def _pass_once(self, keys: set[Key]) -> None:
        """Give functions that were given several scalers the one session, once."""
        for function in sorted({scope for scope, _ in keys}, key=self._source.order.__getitem__):
            given = [name for name in parameters(function) if (function, name) in keys]
            if len(given) < 2:
                continue
            self._work.edits.change(function.params, functools.partial(_once, self._work.names.amp))
            for call in self._aliases.reached.calls(function):
                doubled = [
                    arg for arg, one, its in self._aliases.reached.arguments(call) if one is function and its in given
                ]
                gone = {call.args.index(arg) for arg in doubled[1:]}
                self._work.edits.change(call, functools.partial(_without_arguments, gone))

    def _rename_keywords(self, call: cst.Call, keys: set[Key]) -> None:
        for arg, function, name in self._aliases.reached.arguments(call):
            if arg.keyword is not None and (function, name) in keys:
                self._work.edits.change(arg, lambda new: new.with_changes(keyword=cst.Name(self._work.names.amp)))

    def _renamed(self, text: str) -> str:
        root = text.rpartition(".")[0]
        return f"{root}.{self._work.names.amp}" if root else self._work.names.amp


def _once(name: str, params: cst.Parameters) -> cst.Parameters:
    """Leave one of the parameters of a name."""
    first = next(one for one in (*params.params, *params.kwonly_params) if one.name.value == name)
    positional = [one for one in params.params if one is first or one.name.value != name]
    kwonly = [one for one in params.kwonly_params if one is first or one.name.value != name]
    if positional and positional[-1] is not params.params[-1] and not (kwonly or params.star_kwarg):
        positional[-1] = positional[-1].with_changes(comma=params.params[-1].comma)
    return params.with_changes(params=positional, kwonly_params=kwonly)


def _without_arguments(gone: set[int], call: cst.Call) -> cst.Call:
    args = [arg for place, arg in enumerate(call.args) if place not in gone]
    if args:
        args[-1] = args[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=args)


def target_of(assign: cst.Assign | cst.AnnAssign) -> cst.BaseExpression:
    """Return what an assignment of one target assigns."""
    return assign.targets[0].target if isinstance(assign, cst.Assign) else assign.target


def find_scalers(work: Work, aliases: Aliases, calls: Sequence[cst.Call]) -> list[Scaler]:
    """Return the scalers that ``calls`` make: those of one function or class together, others apart."""
    by_place: dict[cst.CSTNode, list[Made]] = {}
    off = _turned_off(work, aliases, calls)
    for call in calls:
        made = _made(work, call)
        if made is None or aliases.key(target_of(made.assign)) is None:
            scope = work.source.scope(call)
            if isinstance(work.source.parents[call], cst.Return) and isinstance(scope, cst.FunctionDef):
                work.block(call, f"{scope.name.value} returns a GradScaler, and other code steps it",
                           "return a session there, and change that code by hand")  # fmt: skip
                continue
            work.block(call, "a GradScaler that is not simply assigned to a name",
                       "write `scaler = GradScaler(enabled=...)` and run migrate again")  # fmt: skip
            continue
        key = aliases.key(target_of(made.assign))
        assert key is not None
        here = by_place.setdefault(key[0], [])
        if not any(one.assign is made.assign for one in here):
            here.append(made if call not in off else Made(made.assign, None))
    _refuse_different(work, aliases, [call for call in calls if call not in off])
    found: list[Scaler] = []
    for made_here in by_place.values():
        groups = {aliases.of(target_of(one.assign)) for one in made_here}
        if len(groups) > 1:
            work.note(made_here[1].call or made_here[1].assign, f"{len(groups)} GradScalers become one session",
                      "all losses of a session share one scale")  # fmt: skip
        if any(one.call in {m.call for m in other.made} for other in found for one in made_here):
            continue
        others = [*made_here, *_nones(work, aliases, groups)]
        found.append(Scaler(work, aliases, sorted(others, key=lambda one: work.source.order[one.assign])))
    return found


def _turned_off(work: Work, aliases: Aliases, calls: Sequence[cst.Call]) -> list[cst.Call]:
    """Return the calls with ``enabled=False`` beside which another branch makes a scaler that is on."""
    source, found = work.source, list[cst.Call]()
    lines = {call: made.assign for call in calls if (made := _made(work, call)) is not None and made.switch is None}
    for call, line in lines.items():
        enabled, group = enabled_in(source, call), aliases.of(target_of(line))
        same = [one for one, its in lines.items() if one is not call and aliases.of(target_of(its)) == group]
        on = [one for one in same if enabled_in(source, one) is None and source.exclusive(one, call)]
        asked = any(isinstance(source.parents[use], cst.Comparison) for use in aliases.uses({group}))
        if enabled is not None and literal(enabled) is False and len(same) == len(on) == 1 and not asked:
            found.append(call)
    return found


def _refuse_different(work: Work, aliases: Aliases, calls: Sequence[cst.Call]) -> None:
    """Refuse one scaler that branches make with different settings: a session is made once, by one line."""
    first: dict[Key | None, cst.Call] = {}
    for call in calls:
        made = _made(work, call)
        if made is None:
            continue
        other = first.setdefault(aliases.of(target_of(made.assign)), call)
        told, wanted = ((settings_of(work.source, one), enabled_of(work.source, one)) for one in (call, other))
        if told != wanted:
            work.block(call, f"{work.source.code(call)}, and {work.source.code(other)} elsewhere, of one name",
                       "make one session, with the `policy=` and `loss_scale=` that the branches choose")  # fmt: skip


def _made(work: Work, call: cst.Call) -> Made | None:
    """Return the line that makes a scaler by a call, also by ``GradScaler() if new else GradScaler(device)``."""
    source = work.source
    value: cst.CSTNode = call
    parent, tests = source.parents[call], list[str]()
    while isinstance(parent, cst.IfExp):
        other = parent.orelse if parent.body is value else parent.body
        if dotted(other) == "None":
            test = source.code(parent.test)
            tests.append(test if parent.body is value else f"not ({test})")
        elif not _is_scaler(work, other):
            return None
        value, parent = parent, source.parents[parent]
    switch = tests[0] if len(tests) == 1 else " and ".join(f"({test})" for test in tests) or None
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and dotted(parent.targets[0].target):
        return Made(parent, call, switch)
    if isinstance(parent, cst.AnnAssign) and dotted(parent.target):
        return Made(parent, call, switch)
    return None


def _is_scaler(work: Work, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.IfExp):
        return _is_scaler(work, node.body) and _is_scaler(work, node.orelse)
    return isinstance(node, cst.Call) and work.source.meaning(node.func) in SCALERS


def _nones(work: Work, aliases: Aliases, groups: set[Key | None]) -> list[Made]:
    """Return the lines that say that there is no scaler."""
    return [
        Made(node, None)
        for node in work.source.nodes
        if isinstance(node, cst.Assign | cst.AnnAssign)
        and node.value is not None
        and dotted(node.value) == "None"
        and (isinstance(node, cst.AnnAssign) or len(node.targets) == 1)
        and aliases.of(target_of(node)) in groups
    ]


def statement_in(work: Work, made: Made) -> Statement:
    """Return the statement of a line that makes a scaler."""
    return work.source.statement(made.assign)
