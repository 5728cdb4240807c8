"""What core is told of steps that its own calls do not see: those of ``fit``, and of traces that others replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from ..distributed.replicas import Alone


class Told:
    """Tells core, as cheaply as it can.

    Where Python runs after each step, that calls :meth:`after_step`. In a ``tf.function`` of the user's no Python does;
    there an iteration that was skipped calls Python from its branch of ``tf.cond``, which costs the others nothing. XLA
    compiles no such call, and replicas share their branch with a ``merge_call``: there nothing is told.

    Attributes:
        after_step: core's, to be called after a step; looks at the scale as seldom as it may.
        look: core's, looks at the scale now.
        observed: core's, whether somebody observes the scale.
        followed: how many calls, one within the other, are followed from outside now.
    """

    def __init__(self) -> None:
        self.followed = 0
        self.stop()

    def start(self, after_step: Callable[[], None], look: Callable[[], None], observed: Callable[[], bool]) -> None:
        """Tell these of core's from here on."""
        self.after_step, self.look, self.observed = after_step, look, observed

    def stop(self) -> None:
        """Tell nothing from here on, also out of what was traced before."""
        self.start(lambda: None, lambda: None, lambda: False)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Trace or run inside what is followed from outside."""
        self.followed += 1
        try:
            yield
        finally:
            self.followed -= 1

    def after_eager_step(self, replicas: Alone) -> None:
        """Tell of a step that a prepared optimizer made in a loop of Keras's form, unless it is traced or followed."""
        if tf.executing_eagerly() and not self.followed and replicas.here() == 0:
            self.after_step()

    def after_bad(self) -> None:
        """At the end of the branch of a non-finite iteration."""
        if self._from_inside():
            with _after_all():
                _call(self)

    def after_growth(self, grown: Any) -> None:
        """At the end of the branch of a finite iteration; ``grown``: whether the scale grew, a bool scalar."""
        if self._from_inside() and self.observed():
            with _after_all():
                tf.cond(grown, lambda: _call(self), lambda: tf.no_op())

    def _from_inside(self) -> bool:
        if tf.executing_eagerly() or self.followed or tf.distribute.has_strategy():
            return False
        return not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _after_all() -> Any:
    """Return a context whose operations run after all that the current graph has done to variables."""
    graph = tf.compat.v1.get_default_graph()
    return tf.control_dependencies([op for op in graph.get_operations() if op.op_def.is_stateful])


def _call(told: Told) -> Any:
    tf.py_function(lambda: told.look(), [], [])
    return tf.no_op()
