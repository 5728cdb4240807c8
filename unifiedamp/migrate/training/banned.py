"""``binary_cross_entropy`` of probabilities: CUDA's autocast raises an error for it, so that no region holds it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import walk
from ..source import Source
from .aliases import Aliases
from .values import peeled

_FUNCTIONS = ("torch.nn.functional.binary_cross_entropy",)
_CLASSES = ("torch.nn.BCELoss", "torch.nn.modules.loss.BCELoss")
_DEPTH = 3


class Banned:
    """Finds such calls.

    Args:
        source: the file.
        aliases: who is who in it.
    """

    def __init__(self, source: Source, aliases: Aliases) -> None:
        self._source, self._aliases = source, aliases
        made = [one for one in source.of(cst.Assign) if any(map(self._makes, peeled(one.value)))]
        self._criteria = {aliases.of(target.target) for one in made for target in one.targets} - {None}
        self._any = bool(self._criteria) or bool(source.calls(*_FUNCTIONS, *_CLASSES))

    def within(self, node: cst.CSTNode, depth: int = _DEPTH) -> Iterator[cst.Call]:
        """Yield the calls in a node, and in functions of this file that it calls."""
        if not self._any or not depth:
            return
        for call in (one for one in walk(node) if isinstance(one, cst.Call)):
            if self._is_one(call):
                yield call
            for function in self._aliases.reached.functions(call):
                if function.name.value != "__init__":
                    yield from self.within(function.body, depth - 1)

    def _is_one(self, call: cst.Call) -> bool:
        if self._source.meaning(call.func) in _FUNCTIONS or self._makes(call.func):
            return True
        return self._aliases.of(call.func) in self._criteria

    def _makes(self, value: cst.CSTNode) -> bool:
        return isinstance(value, cst.Call) and self._source.meaning(value.func) in _CLASSES
