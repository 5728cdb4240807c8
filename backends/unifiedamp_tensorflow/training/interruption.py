"""Whether an optimizer's update began and did not end, after an exception."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import tensorflow as tf

from .._types import Graph
from ..distributed.replicas import first_copy, replica_counter


class UpdateProgress:
    """A context around the operations of an update, eager or in a trace.

    Two counters on the device, of updates begun and ended, differ only after a call that failed at run time during
    an update: in a trace the first is increased before any operation of the update, the second after all.
    """

    def __init__(self) -> None:
        self._begun, self._ended = (replica_counter(f"updates_{what}") for what in ("begun", "ended"))
        self._now = False
        self._inside: list[tuple[Graph, AbstractContextManager[Any], int]] = []

    def __enter__(self) -> None:
        if tf.executing_eagerly():
            self._now = True
            return
        graph = tf.compat.v1.get_default_graph()
        after = tf.control_dependencies([first_copy(self._begun).assign_add(1, read_value=False)])
        after.__enter__()
        self._inside.append((graph, after, len(graph.get_operations())))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._inside:
            self._now = self._now and error is not None
            return
        graph, after, count = self._inside.pop()
        after.__exit__(kind, error, trace)
        if error is None:
            made = [op for op in graph.get_operations()[count:] if op.op_def.is_stateful]
            with tf.control_dependencies(made):
                first_copy(self._ended).assign_add(1, read_value=False)

    def broken(self) -> bool:
        """Return whether an update began and did not end."""
        self._inside.clear()
        if self._now or tf.inside_function():
            return self._now
        return int(first_copy(self._begun).numpy()) != int(first_copy(self._ended).numpy())

    def forgive(self) -> None:
        """Forget an update that did not end."""
        self._now = False
        with tf.init_scope():
            first_copy(self._ended).assign(first_copy(self._begun))
