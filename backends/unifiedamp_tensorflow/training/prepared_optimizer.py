"""One prepared optimizer: its parameters, and a window of gradients for each replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from ..distributed.replicas import Alone
from ..precision.layers import native
from .fit_window import FitWindow
from .gradients import Gradients
from .interruption import Progress
from .master_weights import Masters, widened
from .scaler import DeviceScaler
from .trainability import Trainability


class Bound:
    """What a session keeps of a prepared optimizer.

    Args:
        outer: the optimizer that users hold.
        inner: the optimizer that is applied.
        named: name → parameter, as ``tf.Variable``.
        accumulate: micro-batches per window.
        scaler: the session's, None without loss scaling.
        replicas: where the model trains.
        masters: float32 master weights, which the inner optimizer was built over; None without.
        trainability: which parameters train now; None where whoever makes the gradients decides.

    Attributes:
        trained: name → what the inner optimizer trains: a parameter, or its master.
        accumulators: name → variable, for windows of several micro-batches; None for others.
        fit_window: the window of ``model.fit``, where windows have several micro-batches; None for others.
        number: its place among the session's.
        progress: whether an update was begun and not ended.
        bad: bool variable over the names: what was not finite at the last skipped step of a compiled function.
    """

    def __init__(
        self, outer: Any, inner: Any, named: dict[str, Any], accumulate: int, scaler: DeviceScaler | None,
        replicas: Alone, masters: Masters | None = None, trainability: Trainability | None = None,
    ) -> None:  # fmt: skip
        self.outer, self.inner, self.named = outer, inner, named
        self.names, self.variables = list(named), list(named.values())
        self.scaler, self.replicas, self.masters = scaler, replicas, masters
        self._trainability, self.number = trainability, 0
        self.trained = named if masters is None else masters.trained
        self.accumulators = self._make_accumulators() if accumulate > 1 else None
        self.bad = tf.Variable(
            [False] * len(named), trainable=False, name="unifiedamp/not_finite",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )  # fmt: skip
        self.fit_window = FitWindow(self.accumulators, accumulate) if self.accumulators is not None else None
        self.progress, self._broken = Progress(), False
        self.steps_before = int(inner.iterations.numpy())
        self._names = {id(variable): name for name, variable in named.items()}
        self._windows = {0: Gradients(self)}

    def _make_accumulators(self) -> dict[str, Any]:
        return {
            name: tf.Variable(
                tf.zeros(variable.shape, variable.dtype), trainable=False, name="unifiedamp/accumulator",
                synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM,
            )
            for name, variable in self.trained.items()
        }  # fmt: skip

    def window(self) -> Gradients:
        """Return the window of the replica that calls."""
        replica = self.replicas.here()
        if replica not in self._windows:
            self._windows[replica] = Gradients(self)
        return self._windows[replica]

    def training(self) -> dict[str, Any]:
        """Return name → parameter of those that are not frozen now."""
        return self.named if self._trainability is None else self._trainability.training(self.named)

    def name_of(self, variable: Any) -> str | None:
        """Return the name of a parameter; None for a stranger."""
        return self._names.get(id(native(variable)))

    # -- once for all replicas -----------------------------------------------------------------------------------

    def apply(self) -> None:
        """Let the optimizer apply the gradients that there are."""
        with self.progress:
            self.replicas.apply(self.inner, lambda: self.window().pairs())
            if self.masters is not None:
                self.masters.publish(self.window().present)

    def clear(self) -> None:
        """Empty the windows of all replicas, and that of ``fit``."""
        for window in self._windows.values():
            window.clear()
        with tf.init_scope():
            self.restart()

    def restart(self) -> None:
        """Drop the window of ``fit``, whose accumulators a loop's window is about to use."""
        if self.fit_window is not None:
            self.fit_window.restart()

    def check_no_window(self, call: str) -> None:
        """Refuse ``fit`` while a loop's window is open, whose accumulators it would use.

        Raises:
            StepOrderError: one is.
        """
        if self.fit_window is not None and not all(window.empty() for window in self._windows.values()):
            raise errors.StepOrderError(
                f"{call}: an accumulation window of a loop is open for this {type(self.inner).__name__}; end it by its "
                "last amp.step, or drop it by amp.discard_step"
            )

    def broken(self) -> bool:
        """Whether an update was begun and not ended, so that some parameters may be updated and others not."""
        self._broken = self._broken or self.progress.broken()
        return self._broken

    def forgive(self) -> None:
        """Take the parameters as they are."""
        if self._broken:
            self.progress.forgive()
            self._broken = False

    def received(self, gradient: Any) -> Any:
        """Return a gradient in the dtype that windows are kept in: float32 for masters, else its own."""
        return gradient if self.masters is None else widened(gradient)

    def loss_finite(self) -> Any:
        """Return whether the unscaled losses are finite, a bool scalar; None where no loss is known."""
        losses = [window.loss for window in self._windows.values() if window.loss is not None]
        finite = [tf.math.is_finite(loss) for loss in losses]
        return (finite[0] if len(finite) == 1 else tf.reduce_all(finite)) if finite else None

    def note_bad(self, flags: Any, present: Sequence[str]) -> None:
        """Keep on the device which gradients were not finite (in the skip branch of a trace)."""
        bad = tf.logical_not(flags)
        if list(present) != self.names:
            places = [[self.names.index(name)] for name in present]
            bad = tf.scatter_nd(places, tf.cast(bad, tf.int32), [len(self.names)]) > 0
        self.bad.assign(bad)

    def bad_names(self) -> list[str]:
        """Return which gradients were not finite at the last skipped step of a compiled function."""
        return [name for name, yes in zip(self.names, self.bad.numpy(), strict=True) if yes]

    # -- compiled calls ------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """Return what a compiled call's Python leaves behind, hashable; empty windows are left out."""
        return tuple([(replica, window.snapshot()) for replica, window in self._windows.items() if not window.empty()])

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Put it back, after a call that may have replayed a trace."""
        full = dict(snapshot)
        for replica, window in self._windows.items():
            window.restore(*full.get(replica, ((), False)))
