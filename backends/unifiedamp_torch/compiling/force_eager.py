"""Having compiled modules run as plain Python for a while, so that hooks on what is inside them are heard."""

from __future__ import annotations

import sys
from typing import Any


class Uncompiled:
    """A context in which nothing runs compiled; several may overlap in any order, in one process-wide count.

    Without dynamo there is nothing compiled, and asking ``torch.compiler`` would import it, which takes seconds.
    Inside a running compiled function torch refuses to change this: then nothing happens, and ``compile_step`` sees to
    its next call.
    """

    _open = 0
    _stance: Any = None

    def __enter__(self) -> Uncompiled:
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
        if self._counted and not kind._open:
            kind._stance.__exit__(None, None, None)
            kind._stance = None
        self._counted = False
