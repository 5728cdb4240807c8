"""Running compiled modules as plain Python for a while, so that hooks on the modules inside them are called."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import ClassVar


class ForceEager:
    """A context in which nothing runs compiled; several may overlap in any order, in one process-wide count.

    Without dynamo nothing is compiled, and asking ``torch.compiler`` would import it, which takes seconds. Inside a
    running compiled function torch refuses to change this: then nothing happens, and ``compile_step`` runs its next
    call as plain Python.
    """

    _open: ClassVar[int] = 0
    _stance: ClassVar[AbstractContextManager[object] | None] = None

    @classmethod
    def active(cls) -> bool:
        """Return whether such a context is open."""
        return cls._open > 0

    def __enter__(self) -> ForceEager:
        kind = type(self)
        self._counted = kind._open > 0 or self._begin()
        kind._open += self._counted
        return self

    def _begin(self) -> bool:
        set_stance = getattr(sys.modules.get("torch._dynamo"), "set_stance", None)
        if set_stance is None:
            return False
        try:
            type(self)._stance = set_stance("force_eager")
        except RuntimeError:
            return False
        return True

    def __exit__(self, *error: object) -> None:
        kind = type(self)
        kind._open -= self._counted
        if self._counted and not kind._open and kind._stance is not None:
            kind._stance.__exit__(None, None, None)
            kind._stance = None
        self._counted = False
