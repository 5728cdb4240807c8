"""The loss scale on the device: the reference transition as TensorFlow operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import LossScale, ScaleState, float32

PENDING_NONE, PENDING_FINITE, PENDING_BAD = 0, 1, 2


def dense_values(gradient: Any) -> Any:
    """Return the tensor that holds a gradient's numbers (of an IndexedSlices, its rows)."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def finite_flags(gradients: Sequence[Any]) -> Any:
    """Return a bool vector: which gradients hold only finite numbers."""
    return tf.stack([tf.reduce_all(tf.math.is_finite(dense_values(gradient))) for gradient in gradients])


def _variable(value: Any, dtype: Any, name: str) -> Any:
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(value, trainable=False, dtype=dtype, name=f"unifiedamp/{name}", aggregation=aggregation)


class DeviceScaler:
    """Scale and counters in variables, moved by operations that can be traced.

    Args:
        settings: the loss scale in force, an enabled one.

    Attributes:
        scale: float32 variable.
        good, bad, applied, skipped: int64 variables, the counters of ``ScaleState``. One each: adding to a scalar in
            place is the cheapest operation there is.
        pending: int64 variable: what the steps since the last update found.
        loss_finite: bool variable: whether the loss of the last skipped step was finite.
    """

    def __init__(self, settings: LossScale) -> None:
        self.settings = settings
        first = settings.initial_state()
        self.scale = _variable(first.scale, tf.float32, "scale")
        self.good, self.bad, self.applied, self.skipped = (
            _variable(0, tf.int64, name) for name in ("good_steps", "bad_steps", "applied_steps", "skipped_steps")
        )
        self.pending = _variable(PENDING_NONE, tf.int64, "pending")
        self.loss_finite = _variable(True, tf.bool, "loss_finite")

    def read(self) -> ScaleState:
        """Return plain numbers; waits for the device."""
        counters = (self.good, self.bad, self.applied, self.skipped)
        return ScaleState(float(self.scale.numpy()), *[int(counter.numpy()) for counter in counters])

    def write(self, state: ScaleState) -> None:
        """Set scale and counters; forget what is pending."""
        self.scale.assign(state.scale)
        self.good.assign(state.good_steps)
        self.bad.assign(state.bad_steps)
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

        tf.cond(all_finite, _branch(applied), _branch(skipped))

    def step_now(self, finite: bool, *, update: bool) -> tuple[float, float]:
        """Count one step and move the scale if ``update``; return the scale before and after. Eager form."""
        state = self.read()
        found = max(int(self.pending.numpy()), PENDING_FINITE if finite else PENDING_BAD)
        counted = self.applied if finite else self.skipped
        counted.assign_add(1)
        new = self.settings.next_state(state, found == PENDING_BAD) if update else state
        if new is not state:
            self.scale.assign(new.scale)
            self.good.assign(new.good_steps)
            self.bad.assign(new.bad_steps)
        self.pending.assign(PENDING_NONE if update else found)
        return state.scale, new.scale

    def update(self) -> None:
        """Move the scale by what is pending; nothing pending leaves all as it is."""
        pending = self.pending.read_value()
        self.pending.assign(PENDING_NONE)
        branches = [_branch(lambda: None), _branch(self._move_finite), _branch(self._move_bad)]
        tf.switch_case(tf.cast(pending, tf.int32), branches)

    def _move_finite(self) -> None:
        self.bad.assign(0)
        good = self.good.assign_add(1, read_value=True)
        tf.cond(good >= self.settings.growth_interval, _branch(self._grow), _branch(lambda: None))

    def _grow(self) -> None:
        largest = float32(self.settings.scale_bounds[1])
        self.scale.assign(tf.minimum(largest, self.scale * float32(self.settings.growth_factor)))
        self.good.assign(0)

    def _move_bad(self) -> None:
        self.good.assign(0)
        bad = self.bad.assign_add(1, read_value=True)
        tf.cond(bad >= self.settings.hysteresis, _branch(self._shrink), _branch(lambda: None))

    def _shrink(self) -> None:
        smallest = float32(self.settings.scale_bounds[0])
        self.scale.assign(tf.maximum(smallest, self.scale * float32(self.settings.backoff_factor)))


def _branch(body: Callable[[], Any]) -> Callable[[], Any]:
    """Return ``body`` as a branch of ``tf.cond``: its effects count, it returns nothing."""

    def branch() -> Any:
        body()
        return tf.no_op() if not tf.executing_eagerly() else None

    return tf.autograph.experimental.do_not_convert(branch)


def _multiplied(gradient: Any, factor: Any) -> Any:
    values = dense_values(gradient)
    product = values * tf.cast(factor, values.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(product, gradient.indices, gradient.dense_shape)
    return product
