"""How a layer was called, restored when the layer is computed once more in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from .. import patches
from .autocast import thread
from .emulation import Emulating


class CallContextSnapshot:
    """The present call of a layer: its region, and whether it trains."""

    def __init__(self) -> None:
        self._compute, self._training = thread.compute, thread.training
        self._emulating: Callable[[], AbstractContextManager[None]] = Emulating if thread.emulates else nullcontext
        self._context, self._keras_training = patches.read_call_context()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore it inside."""
        before = thread.compute, thread.training, thread.calling, thread.recomputing
        thread.compute, thread.training, thread.calling, thread.recomputing = self._compute, self._training, True, True
        try:
            with self._emulating(), patches.call_context(self._context, self._keras_training):
                yield
        finally:
            thread.compute, thread.training, thread.calling, thread.recomputing = before
