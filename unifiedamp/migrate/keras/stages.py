"""Models that are compiled again, to fine-tune them: a session binds one optimizer to a model; each stage has one."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import walk
from ..sessions import session_line
from ..source import Source
from ..work import Work
from .makers import handed_in, makers_of
from .start import Start

Root = tuple[str, cst.CSTNode]


class Stages:
    """The sessions of a file's calls of ``compile``.

    Args:
        work: the file.
        start: what the first session replaces.
    """

    def __init__(self, work: Work, start: Start) -> None:
        self._work, self._start = work, start
        self._compiled: list[tuple[cst.Call, set[Root]]] = []

    def session(self, call: cst.Call, model: str) -> tuple[str, str | None]:
        """Return what the session of a ``compile`` is called, and the line that makes it; None where it is there."""
        source, names = self._work.source, self._work.names
        roots = set(_roots(source, model, source.scope(call)))
        before = [other for other, its in self._compiled if its & roots and not source.exclusive(other, call)]
        before = [other for other in before if not self._made_between(model, other, call)]
        self._compiled.append((call, roots))
        if not before or not self._visible(call):
            return names.amp, None
        name = f"{names.amp}_{1 + len(before)}"
        return name, session_line(names, name, "tensorflow", **self._start.settings)

    def _visible(self, call: cst.Call) -> bool:
        """Whether the session's settings mean the same at a ``compile``."""
        source, start = self._work.source, self._start
        home, scope = source.scope(start.call), source.scope(call)
        codes = [cst.parse_expression(code) for code in start.settings.values() if code]
        names = {one.value for code in codes for one in walk(code) if isinstance(one, cst.Name)}
        local = any(source.bound_in(name, one) for name in names for one in (home, scope) if one is not source.module)
        return not start.rewrites and (home is scope or not local)

    def _made_between(self, model: str, first: cst.Call, last: cst.Call) -> bool:
        source = self._work.source
        if source.scope(first) is not source.scope(last):
            return False
        makers = makers_of(source, model, source.scope(last))
        return any(source.order[first] < source.order[maker] < source.order[last] for maker in makers)


def _roots(source: Source, model: str, scope: cst.CSTNode) -> Iterator[Root]:
    """Yield where a model's name is bound: in a function, in those that hand it in, or on ``self``."""
    waiting, seen = [(model, scope)], set[Root]()
    while waiting:
        name, where = waiting.pop()
        owner = source.module if name.startswith("self.") else where
        if (name, owner) in seen:
            continue
        seen.add((name, owner))
        given = handed_in(source, name, where)
        waiting += [(its, function) for its, function, _ in given]
        if not given:
            yield name, owner
