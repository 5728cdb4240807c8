"""The loss scale on the device: the reference transition as TensorFlow operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from unifiedamp.backend import LossScale, ScaleState, float32

from .fit_events import Told

PENDING_NONE, PENDING_FINITE, PENDING_BAD = 0, 1, 2
UNKNOWN = -1


def dense_values(gradient: Any) -> Any:
    """Return the tensor that holds a gradient's numbers (of an IndexedSlices, its rows)."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def finite_flags(gradients: Sequence[Any]) -> Any:
    """Return a bool vector: which gradients hold only finite numbers."""
    return tf.stack([tf.reduce_all(tf.math.is_finite(dense_values(gradient))) for gradient in gradients])


def finite_flags_by_sums(gradients: Sequence[Any]) -> Any:
    """Return what :func:`finite_flags` does, in about a third of the time on a CPU.

    An inf or nan makes a sum inf or nan, and summing is the cheapest pass over a tensor that a CPU has. A sum may also
    overflow by itself, so where one is not finite a closer look decides. (On a GPU the branch would cost a wait.)
    """
    sums = [tf.reduce_sum(tf.cast(dense_values(gradient), tf.float32)) for gradient in gradients]
    flags = tf.math.is_finite(tf.stack(sums))
    return tf.cond(tf.reduce_all(flags), lambda: flags, lambda: finite_flags(gradients))


def _variable(value: Any, dtype: Any, name: str) -> Any:
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(value, trainable=False, dtype=dtype, name=f"unifiedamp/{name}", aggregation=aggregation)


class DeviceScaler:
    """Scale and counters in variables, moved by operations that can be traced; once for all replicas.

    Args:
        settings: the loss scale in force, an enabled one.
        on_cpu: whether gradients are there.
        told: told of iterations in traces that are not followed from outside; None tells nothing.

    Attributes:
        scale: float32 variable.
        run: int64 variable: good steps since the last growth or skip, or the present run of bad ones as a negative
            number (one of the two counts is always 0).
        applied, skipped: int64 variables, counters of ``ScaleState``.
        pending: int64 variable: what the steps since the last update found.
        skipped_by: int64 variable: the number of the optimizer whose step was the last that was skipped.
        loss_finite: int64 variable: whether the loss of the last skipped step was finite, 1 or 0; UNKNOWN where it
            is not known.
    """

    def __init__(self, settings: LossScale, on_cpu: bool, told: Told | None = None) -> None:
        self.settings = settings
        self.told = told or Told()
        self.finite_flags = finite_flags_by_sums if on_cpu else finite_flags
        self._make(settings.initial_state())

    def _make(self, state: ScaleState) -> None:
        self.scale = _variable(state.scale, tf.float32, "scale")
        self.run = _variable(_run(state), tf.int64, "run")
        self.applied = _variable(state.applied_steps, tf.int64, "applied_steps")
        self.skipped = _variable(state.skipped_steps, tf.int64, "skipped_steps")
        self.pending = _variable(PENDING_NONE, tf.int64, "pending")
        self.skipped_by = _variable(0, tf.int64, "skipped_by")
        self.loss_finite = _variable(UNKNOWN, tf.int64, "loss_finite")

    def move(self, scope: AbstractContextManager[Any]) -> None:
        """Make the variables again in ``scope``, that of a strategy, with the values they have."""
        state = self.read()
        with scope:
            self._make(state)

    def read(self) -> ScaleState:
        """Return plain numbers; waits for the device."""
        run, applied, skipped = (int(counter.value()) for counter in (self.run, self.applied, self.skipped))
        return ScaleState(float(self.scale.value()), max(run, 0), max(-run, 0), applied, skipped)

    def write(self, state: ScaleState) -> None:
        """Set scale and counters; forget what is pending."""
        self.scale.assign(state.scale)
        self.run.assign(_run(state))
        self.applied.assign(state.applied_steps)
        self.skipped.assign(state.skipped_steps)
        self.pending.assign(PENDING_NONE)

    def unscale(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients divided by the scale."""
        inverse = tf.math.reciprocal(self.scale)
        return [_multiplied(gradient, inverse) for gradient in gradients]

    def step(self, all_finite: Any, apply: Callable[[], None], skip: Callable[[], None], *, alone: bool) -> None:
        """Apply or skip, and count. Graph form.

        Args:
            all_finite: bool scalar.
            apply, skip: what else to do in either case.
            alone: nothing else is pending and the iteration ends here, so the scale moves in the same branch.
        """

        def applied() -> None:
            apply()
            self.applied.assign_add(1)
            if alone:
                self._move_finite()
            else:
                self.pending.assign(tf.maximum(self.pending, PENDING_FINITE))

        def skipped() -> None:
            skip()
            self.skipped.assign_add(1)
            if alone:
                self._move_bad()
            else:
                self.pending.assign(PENDING_BAD)

        tf.cond(all_finite, branch(applied), branch(skipped))

    def step_now(self, finite: bool, *, update: bool) -> tuple[float, float]:
        """Count one step and move the scale if ``update``; return the scale before and after. Eager form."""
        state = self.read()
        found = max(int(self.pending.numpy()), PENDING_FINITE if finite else PENDING_BAD)
        counted = self.applied if finite else self.skipped
        counted.assign_add(1)
        new = self.settings.next_state(state, found == PENDING_BAD) if update else state
        if new is not state:
            self.scale.assign(new.scale)
            self.run.assign(_run(new))
        self.pending.assign(PENDING_NONE if update else found)
        return state.scale, new.scale

    def update(self) -> None:
        """Move the scale by what is pending; nothing pending leaves all as it is."""
        pending = self.pending.read_value()
        self.pending.assign(PENDING_NONE)
        branches = [branch(lambda: None), branch(self._move_finite), branch(self._move_bad)]
        tf.switch_case(tf.cast(pending, tf.int32), branches)

    def _move_finite(self) -> None:
        good = tf.maximum(self.run.read_value(), 0) + 1
        grown = good >= self.settings.growth_interval
        self.run.assign(tf.where(grown, tf.zeros_like(good), good))
        if self.settings.growth_factor != 1.0:
            self._grow(grown)
            self.told.after_growth(grown)

    def _grow(self, grown: Any) -> None:
        scale, largest = self.scale.read_value(), float32(self.settings.scale_bounds[1])
        larger = tf.minimum(largest, _times(scale, self.settings.growth_factor))
        self.scale.assign(tf.where(grown, larger, scale))

    def _move_bad(self) -> None:
        bad = 1 - tf.minimum(self.run.read_value(), 0)
        self.run.assign(-bad)
        scale, smallest = self.scale.read_value(), float32(self.settings.scale_bounds[0])
        smaller = tf.maximum(smallest, _times(scale, self.settings.backoff_factor))
        self.scale.assign(tf.where(bad >= self.settings.hysteresis, smaller, scale))
        self.told.after_bad()


def _times(scale: Any, factor: float) -> Any:
    """Return the product rounded once, as the reference does; past float32 it is inf."""
    return tf.cast(tf.cast(scale, tf.float64) * factor, tf.float32)


def _run(state: ScaleState) -> int:
    return -state.bad_steps if state.bad_steps else state.good_steps


def branch(body: Callable[[], Any]) -> Callable[[], Any]:
    """Return ``body`` as a branch of ``tf.cond``: its effects count, it returns nothing."""

    def run() -> Any:
        body()
        return tf.no_op() if not tf.executing_eagerly() else None

    return tf.autograph.experimental.do_not_convert(run)


def _multiplied(gradient: Any, factor: Any) -> Any:
    values = dense_values(gradient)
    product = values * tf.cast(factor, values.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(product, gradient.indices, gradient.dense_shape)
    return product
