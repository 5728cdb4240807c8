"""What Keras and the present region hold about a call, to be held again when a layer is computed once more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .autocast import thread

try:
    from keras.src.backend.common import global_state
except ImportError:  # Keras 2
    global_state = None
    from keras.src.engine.base_layer_utils import call_context

_CONTEXT = "current_call_ctx"


class Moment:
    """How the present call of a layer was made: region, training or not."""

    def __init__(self) -> None:
        self._compute, self._training = thread.compute, thread.training
        if global_state is None:
            self._keras = call_context().training
        else:
            self._context = global_state.get_global_attribute(_CONTEXT)
            self._keras = getattr(self._context, "training", None)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Hold the same inside."""
        before = thread.compute, thread.training, thread.calling, thread.again
        thread.compute, thread.training, thread.calling, thread.again = self._compute, self._training, True, True
        try:
            with self._in_keras():
                yield
        finally:
            thread.compute, thread.training, thread.calling, thread.again = before

    def _in_keras(self) -> AbstractContextManager[Any]:
        if global_state is None:
            context = call_context()
            state = context._state
            return context.enter(state["layer"], state["inputs"], state["build_graph"], self._keras, state["saving"])
        return self._call_context() if self._context is not None else nullcontext()

    @contextmanager
    def _call_context(self) -> Iterator[None]:
        found, training = global_state.get_global_attribute(_CONTEXT), getattr(self._context, "training", None)
        self._context.training = self._keras
        global_state.set_global_attribute(_CONTEXT, self._context)
        try:
            yield
        finally:
            self._context.training = training
            global_state.set_global_attribute(_CONTEXT, found)
