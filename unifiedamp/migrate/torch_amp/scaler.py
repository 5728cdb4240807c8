"""The file's one ``GradScaler``: where it is made, and the names that it goes by."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted, parameters
from ..work import Work


class Scaler:
    """A GradScaler that is made once and followed through the file.

    Attributes:
        call: the call that makes it.
        made: the assignment of that call to a name.
        name: that name.
        names: each name of the scaler → what the session is called there.

    Raises:
        CannotMigrate: it is handed to code that is not in the file.
    """

    def __init__(self, work: Work, call: cst.Call, made: cst.Assign) -> None:
        self._work, self._source = work, work.source
        self.call, self.made = call, made
        self.name = dotted(made.targets[0].target)
        self.names: dict[str, str] = {}
        self._follow(self.name)

    @property
    def session(self) -> str:
        """What the session is called where it is made."""
        return self.names[self.name]

    def seen_from(self, node: cst.CSTNode) -> str | None:
        """Return what the session is called where ``node`` stands, or None."""
        scopes = [one for one in self._source.above(node) if isinstance(one, cst.FunctionDef | cst.Module)]
        order = self._source.order
        for old, new in self.names.items():
            root = old.partition(".")[0]
            if not any(self._source.bound_in(root, scope) for scope in scopes):
                continue
            early = self._source.scope(self.made) is scopes[0] and order[node] < order[self.made]
            if not early or self.name != old:
                return new
        return None

    def _follow(self, text: str) -> None:
        """Find the names that the scaler goes by: parameters it is passed as, attributes it is kept in."""
        if text in self.names:
            return
        amp = self._work.names.amp
        self.names[text] = f"self.{amp}" if text.startswith("self.") else amp
        for use in self._source.uses(text):
            parent = self._source.parents[use]
            if isinstance(parent, cst.Assign) and _plain(parent.targets[0].target) and parent.value is use:
                self._follow(dotted(parent.targets[0].target))
            elif isinstance(parent, cst.Arg):
                self._follow(self._parameter(parent))

    def _parameter(self, arg: cst.Arg) -> str:
        """Return the name that a function of this file has for what is passed to it."""
        call = self._source.parents[arg]
        assert isinstance(call, cst.Call)
        name = dotted(call.func)
        function = self._source.functions().get(name.removeprefix("self."))
        if function is None:
            raise self._work.stop(
                call, f"the scaler is passed to {name or 'code'}, which this file does not define",
                "give it the session and migrate it too, or pass `amp.backend.scaler`, which is a GradScaler",
            )  # fmt: skip
        if arg.keyword is not None:
            self._work.edits.change(arg, lambda new: new.with_changes(keyword=cst.Name(self._work.names.amp)))
            return arg.keyword.value
        named = parameters(function)
        named = named[1:] if named[:1] in (["self"], ["cls"]) else named
        position = [a for a in call.args if a.keyword is None].index(arg)
        if position >= len(named):
            raise self._work.stop(call, f"the scaler is passed to {name} in *args", "name the argument")
        return named[position]


def find_scaler(work: Work, calls: Sequence[cst.Call]) -> Scaler:
    """Return the scaler that ``calls``, one or more, make.

    Raises:
        CannotMigrate: they make several, or none that has a name.
    """
    source, call = work.source, calls[0]
    if len(calls) > 1:
        where = ", ".join(str(source.line(each)) for each in calls)
        raise work.stop(
            calls[1], f"{len(calls)} GradScalers (lines {where})",
            "a session has one scale for all its optimizers: make one session (or one for each scaler) by hand",
        )  # fmt: skip
    assign = source.parents[call]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or not _plain(assign.targets[0].target):
        raise work.stop(
            call, "a GradScaler that is not simply assigned to a name",
            "write `scaler = GradScaler(enabled=...)` and run migrate again",
        )  # fmt: skip
    others = [a for a in source.assigns(dotted(assign.targets[0].target)) if a is not assign]
    if others:
        raise work.stop(others[0], "the scaler's name is assigned twice", "make one session for both cases")
    return Scaler(work, call, assign)


def _plain(node: cst.CSTNode) -> bool:
    name = dotted(node)
    return bool(name) and ("." not in name or (name.startswith("self.") and name.count(".") == 1))
