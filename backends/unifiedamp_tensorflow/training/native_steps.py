"""Steps that core's own calls do not see: those of ``fit``, and of traces that user code replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf

from unifiedamp.backend import StepFollower, errors

from .._types import Tensor
from ..distributed.replicas import Replicas
from ..internals import under_xla
from .xla_steps import XlaSteps


class NativeSteps:
    """Reports such steps to core, as cheaply as possible.

    Where Python runs after each step, it calls :meth:`after_step`. In a ``tf.function`` of the user's, no Python runs;
    there a skipped iteration calls Python from its branch of ``tf.cond``, which costs the others nothing. XLA compiles
    no such call, and replicas share their branch with a ``merge_call``: there nothing is reported.

    Args:
        scheduled: each step must be seen, because the session's policy depends on their number.

    Attributes:
        after_step: core's: counts steps, and polls the scale when it is due.
        poll: core's: polls the scale now.
        observed: core's: whether the scale has observers.
        followed: how many calls, nested, report their steps from outside now.
        follower: follows each step; None for none.
    """

    def __init__(self, scheduled: bool = False) -> None:
        self._scheduled = scheduled
        self.followed = 0
        self.follower: StepFollower | None = None
        self._under_xla: XlaSteps | None = None
        self.stop()

    def start(self, after_step: Callable[..., bool], poll: Callable[[], None], observed: Callable[[], bool]) -> None:
        """Report to core from here on."""
        self.after_step, self.poll, self.observed = after_step, poll, observed

    def stop(self) -> None:
        """Report nothing from here on, also from earlier traces."""
        self.start(lambda *_: False, lambda: None, lambda: False)
        self.follower = None
        if self._under_xla is not None:
            self._under_xla.stop()
            self._under_xla = None

    def follow(self, follower: StepFollower) -> None:
        """Report each step to a follower from here on."""
        self.follower = follower
        if tf.executing_eagerly():
            self._under_xla = XlaSteps()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Trace or run inside what reports its steps from outside."""
        self.followed += 1
        try:
            yield
        finally:
            self.followed -= 1

    def after_eager_step(self, replicas: Replicas) -> None:
        """Report a step of a prepared optimizer in a loop of Keras's form, unless it is traced or followed."""
        self._check_seen()
        if tf.executing_eagerly() and not self.followed and replicas.here() == 0:
            self.after_step()
            if self.follower is not None:
                self.follower.native_step()

    def deferred_step(self, losses: Sequence[Tensor]) -> None:
        """Report the losses of a step in Keras 2's form; a traced one calls the follower each time it runs."""
        self._check_seen()
        follower = self.follower
        if follower is None:
            return
        if tf.executing_eagerly():
            for loss in losses:
                follower.native_loss(loss)
            return

        def note(*values: Tensor, more: bool = False) -> None:
            for value in values:
                follower.native_loss(value)
            follower.native_step(more=more)

        self.call_from_trace(note, losses)

    def _check_seen(self) -> None:
        if self._scheduled and not self.followed and not tf.executing_eagerly():
            raise errors.UnsupportedError(
                "a step in a tf.function of your own: no Python runs when it is replayed, so the iterations of the "
                "session's schedule cannot be counted. Compile the step with amp.compile, or use model.fit"
            )

    def call_from_trace(self, fn: Callable[..., None], tensors: Sequence[Tensor]) -> None:
        """Have the trace of a step in a ``tf.function`` of the user's call ``fn`` with values, each time it runs."""
        graph = tf.compat.v1.get_default_graph()
        if self.followed or tf.executing_eagerly() or tf.distribute.has_strategy():
            return
        if under_xla(graph):
            if self._under_xla is not None:
                self._under_xla.note(fn, tensors)
            return
        with _after_all():
            tf.py_function(fn, list(tensors), [])

    def after_nonfinite(self) -> None:
        """End the branch of a non-finite iteration."""
        if self._reports_from_graph():
            with _after_all():
                _poll(self)

    def after_finite(self, grown: Tensor) -> None:
        """End the branch of a finite iteration; ``grown``: whether the scale grew, a bool scalar."""
        if self._reports_from_graph() and self.observed():
            with _after_all():
                tf.cond(grown, lambda: _poll(self), lambda: tf.no_op())

    def _reports_from_graph(self) -> bool:
        if tf.executing_eagerly() or self.followed or tf.distribute.has_strategy():
            return False
        return not under_xla(tf.compat.v1.get_default_graph())


def _after_all() -> AbstractContextManager[Any]:
    """Return a context whose operations run after all that the current graph has done to variables."""
    graph = tf.compat.v1.get_default_graph()
    return tf.control_dependencies([op for op in graph.get_operations() if op.op_def.is_stateful])


def _poll(steps: NativeSteps) -> Any:
    tf.py_function(lambda: steps.poll(), [], [])
    return tf.no_op()
