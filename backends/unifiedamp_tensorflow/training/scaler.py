"""The loss scale on the device, and the counters of its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from unifiedamp.backend import LossScale, ScaleState

from .._types import Gradient, Tensor, Variable
from ..device.numerics import finite_flags, finite_flags_by_sums, multiplied
from .native_steps import NativeSteps
from .scale_transition import Updated, after_finite, after_nonfinite, selected

PENDING_NONE, PENDING_FINITE, PENDING_NONFINITE = 0, 1, 2
UNKNOWN = -1


def _variable(value: float, dtype: Any, name: str) -> Variable:
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(value, trainable=False, dtype=dtype, name=f"unifiedamp/{name}", aggregation=aggregation)


class DeviceScaler:
    """Scale and counters in variables, updated by operations that can be traced; once for all replicas.

    Args:
        settings: the loss scale in force, an enabled one.
        on_cpu: whether gradients are on the CPU.
        native_steps: reports iterations of traces that user code replays; None reports nothing.

    Attributes:
        scale: float32 variable.
        run: int64 variable: good steps since the last growth or skip, or the present run of bad ones as a negative
            number (one of the two counts is always 0).
        spent: int64 variable, ``hysteresis_steps``; None where the settings do not keep it.
        applied, skipped: int64 variables, counters of ``ScaleState``.
        pending: int64 variable: what the steps since the last update found, one of the PENDING constants.
        skipped_by: int64 variable: the number of the optimizer whose step was the last that was skipped.
        loss_finite: int64 variable: whether the loss of the last skipped step was finite, 1 or 0; UNKNOWN where it
            is not known.
    """

    def __init__(self, settings: LossScale, on_cpu: bool, native_steps: NativeSteps | None = None) -> None:
        self.settings = settings
        self._native_steps = native_steps or NativeSteps()
        self.finite_flags = finite_flags_by_sums if on_cpu else finite_flags
        self._last: tuple[int, int] | None = None  # the optimizer of the last eager step, and what was pending before
        self._make(settings.initial_state())

    def _make(self, state: ScaleState) -> None:
        self.scale = _variable(state.scale, tf.float32, "scale")
        self.run = _variable(_run(state), tf.int64, "run")
        kept = self.settings.keeps_hysteresis
        self.spent = _variable(state.hysteresis_steps, tf.int64, "hysteresis_steps") if kept else None
        self.applied = _variable(state.applied_steps, tf.int64, "applied_steps")
        self.skipped = _variable(state.skipped_steps, tf.int64, "skipped_steps")
        self.pending = _variable(PENDING_NONE, tf.int64, "pending")
        self.skipped_by = _variable(0, tf.int64, "skipped_by")
        self.loss_finite = _variable(UNKNOWN, tf.int64, "loss_finite")

    def move(self, scope: AbstractContextManager[Any]) -> None:
        """Recreate the variables in a strategy's ``scope``, with the values they have."""
        state = self.read()
        with scope:
            self._make(state)

    def read(self) -> ScaleState:
        """Return plain numbers; waits for the device."""
        run, applied, skipped = (int(counter.value()) for counter in (self.run, self.applied, self.skipped))
        spent = 0 if self.spent is None else int(self.spent.value())
        return ScaleState(float(self.scale.value()), max(run, 0), max(-run, 0), applied, skipped, spent)

    def write(self, state: ScaleState) -> None:
        """Set scale and counters; forget what is pending."""
        self._write_numbers(state)
        self.applied.assign(state.applied_steps)
        self.skipped.assign(state.skipped_steps)
        self.forget()

    def forget(self) -> None:
        """Leave what the steps since the last update found out of the next one."""
        self.pending.assign(PENDING_NONE)
        self._last = None

    def forget_step(self, number: int) -> None:
        """Leave out what an optimizer's eager step found, if it was the last one since the last update."""
        if self._last is not None and self._last[0] == number:
            self.pending.assign(self._last[1])
            self._last = None

    def _write_numbers(self, state: ScaleState) -> None:
        self.scale.assign(state.scale)
        self.run.assign(_run(state))
        if self.spent is not None:
            self.spent.assign(state.hysteresis_steps)

    def numbers(self) -> list[Variable]:
        """Return what the next scale depends on."""
        return [self.scale, self.run, *([] if self.spent is None else [self.spent])]

    def saved_variables(self) -> dict[str, Variable]:
        """Return name → variable of what a checkpoint needs."""
        kept = {} if self.spent is None else {"hysteresis_steps": self.spent}
        counts = {"applied_steps": self.applied, "skipped_steps": self.skipped}
        return {"scale": self.scale, "run": self.run, **counts, **kept}

    def continue_from(self, scale: float, good_steps: int) -> None:
        """Take over the scale of Keras's own optimizer, within the bounds of this session's settings."""
        self._write_numbers(ScaleState(scale, good_steps))
        self.clamp()

    def clamp(self) -> None:
        """Bring a scale and a count that were loaded into the bounds of this session's settings."""
        self._write_numbers(self.settings.within(self.read()))

    def unscale(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Return the gradients divided by the scale."""
        inverse = tf.math.reciprocal(self.scale)
        return [multiplied(gradient, inverse) for gradient in gradients]

    def step(
        self, all_finite: Tensor, apply: Callable[[], None], skip: Callable[[], None], *, alone: bool,
        dropped: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Apply or skip, and count. Graph form.

        Args:
            all_finite: bool scalar.
            apply, skip: what else to do in either case.
            alone: nothing else is pending and the iteration ends here, so the scale is updated in the same branch.
            dropped: bool scalar: do nothing and count nothing where gradients are finite; None for never.
        """

        def applied() -> None:
            apply()
            self.applied.assign_add(1)
            if alone:
                self._update_finite()
            else:
                self.pending.assign(tf.maximum(self.pending, PENDING_FINITE))

        def skipped() -> None:
            skip()
            self.skipped.assign_add(1)
            if alone:
                self._update_nonfinite()
            else:
                self.pending.assign(PENDING_NONFINITE)

        if dropped is None:
            tf.cond(all_finite, branch(applied), branch(skipped))
            return
        case = tf.where(all_finite, tf.cast(dropped, tf.int32), 2)
        tf.switch_case(case, [branch(applied), branch(lambda: None), branch(skipped)])

    def count_where(self, all_finite: Tensor, applied: Tensor, *, update: bool) -> None:
        """Count as :meth:`step` does, without a branch, and update the scale if ``update``. Graph form.

        Args:
            all_finite: bool scalar.
            applied: bool scalar: whether the step is applied; a finite one that is not counts as nothing.
            update: the iteration ends here.
        """
        self.applied.assign_add(tf.cast(applied, tf.int64))
        self.skipped.assign_add(tf.cast(tf.logical_not(all_finite), tf.int64))
        found = tf.where(all_finite, tf.where(applied, PENDING_FINITE, PENDING_NONE), PENDING_NONFINITE)
        found = tf.maximum(self.pending.read_value(), tf.cast(found, tf.int64))
        if update:
            self._update_where(found)
        self.pending.assign(tf.constant(PENDING_NONE, tf.int64) if update else found)

    def step_now(self, number: int, finite: bool, *, update: bool, dropped: bool = False) -> tuple[float, float]:
        """Count one step of the optimizer ``number`` and update the scale if ``update``; return the scale before and
        after. Eager form.

        A step that is ``dropped`` although its gradients are finite counts as nothing.
        """
        state, found = self.read(), int(self.pending.numpy())
        self._last = None if update else (number, found)
        if not (finite and dropped):
            found = max(found, PENDING_FINITE if finite else PENDING_NONFINITE)
            counted = self.applied if finite else self.skipped
            counted.assign_add(1)
        judged = update and found != PENDING_NONE
        new = self.settings.next_state(state, found == PENDING_NONFINITE) if judged else state
        if new is not state:
            self._write_numbers(new)
        self.pending.assign(PENDING_NONE if update else found)
        return state.scale, new.scale

    def update(self) -> None:
        """Update the scale by what is pending; nothing pending leaves it."""
        self._last = None
        pending = self.pending.read_value()
        self.pending.assign(PENDING_NONE)
        branches = [branch(lambda: None), branch(self._update_finite), branch(self._update_nonfinite)]
        tf.switch_case(tf.cast(pending, tf.int32), branches)

    def _update_where(self, found: Tensor) -> None:
        """Update the scale by one of the PENDING constants, an int64 scalar, without a branch."""
        scale, run, spent = self.scale.read_value(), self.run.read_value(), self._read_spent()
        good = after_finite(self.settings, scale, tf.maximum(run, 0), spent)
        bad = after_nonfinite(self.settings, scale, -tf.minimum(run, 0), spent)
        unchanged = Updated(scale, run, spent, tf.constant(False))
        new = selected(tf.equal(found, PENDING_NONFINITE), bad._replace(run=-bad.run), good)
        new = selected(tf.equal(found, PENDING_NONE), unchanged, new)
        self.run.assign(new.run)
        self._write_spent(new)
        self.scale.assign(new.scale)

    def _update_finite(self) -> None:
        good, spent = tf.maximum(self.run.read_value(), 0), self._read_spent()
        new = after_finite(self.settings, self.scale.read_value(), good, spent)
        self.run.assign(new.run)
        self._write_spent(new)
        if self.settings.growth_factor != 1.0:
            self.scale.assign(new.scale)
            self._native_steps.after_finite(new.changes)

    def _update_nonfinite(self) -> None:
        bad, spent = -tf.minimum(self.run.read_value(), 0), self._read_spent()
        new = after_nonfinite(self.settings, self.scale.read_value(), bad, spent)
        self.run.assign(-new.run)
        self._write_spent(new)
        self.scale.assign(new.scale)
        self._native_steps.after_nonfinite()

    def _read_spent(self) -> Tensor | None:
        return None if self.spent is None else self.spent.read_value()

    def _write_spent(self, new: Updated) -> None:
        if self.spent is not None:
            self.spent.assign(new.spent)


def _run(state: ScaleState) -> int:
    return -state.bad_steps if state.bad_steps else state.good_steps


def branch(body: Callable[[], object]) -> Callable[[], Any]:
    """Return ``body`` as a branch of ``tf.cond``: its effects count, it returns nothing."""

    def run() -> Any:
        body()
        return tf.no_op() if not tf.executing_eagerly() else None

    return tf.autograph.experimental.do_not_convert(run)
