"""The end of a window: apply or skip, once for all replicas, and update the scale. For loops and ``model.fit``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from unifiedamp.backend import StepReason, StepResult, errors, result

from .._types import Pairs, Tensor, Variable
from ..precision.float8_scales import DelayedScaling
from ..precision.tapes import in_dataset_loop
from .checks import not_in_trace
from .gradient_buffer import GradientBuffer
from .native_steps import NativeSteps
from .prepared_optimizer import PreparedOptimizer
from .scaler import UNKNOWN, DeviceScaler, branch


class GradientListener(Protocol):
    """What records the gradients of ``model.fit``."""

    def note_fit(self, prepared: PreparedOptimizer, scaled: bool) -> None:
        """Read the complete gradients of a step, or of a micro-batch and those before it."""


class Steps:
    """Ends the windows of one session.

    Args:
        scaler: the session's, None without loss scaling.
        native_steps: reports steps that core does not see.
        listener: gets the gradients of ``model.fit`` while steps are recorded.
        float8: delayed scaling, whose iterations end with steps.
    """

    def __init__(
        self, scaler: DeviceScaler | None, native_steps: NativeSteps, listener: GradientListener,
        float8: DelayedScaling,
    ) -> None:  # fmt: skip
        self._scaler, self._native_steps, self._listener, self._float8 = scaler, native_steps, listener, float8

    def end(self, prepared: PreparedOptimizer, *, update: bool, alone: bool) -> StepResult:
        """Apply or skip the gradients of a window that holds some.

        Args:
            prepared: whose window.
            update: the iteration ends here, so the scale is updated.
            alone: the session has no other optimizer.

        Raises:
            UnsupportedError: under a loss scale in a loop over a dataset.
        """
        self._check_loop("amp.step")
        buffer = prepared.buffer()
        buffer.unscale("step")
        buffer.pack()
        return prepared.replicas.once(lambda: self._decide(prepared, buffer, update, alone))

    def end_fit(
        self, prepared: PreparedOptimizer, pairs: Pairs, scaled: bool, loss: Tensor | None = None,
        flags: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Run one whole step, or a micro-batch of one, on the gradients that ``model.fit`` made.

        Args:
            prepared: whose gradients.
            pairs: (gradient, variable), None for a missing gradient.
            scaled: the gradients are multiplied by the scale (Keras 3).
            loss: the unscaled loss; None where it is not known.
            flags: which of the raw gradients hold only finite numbers; None to check those given.
        """
        self._check_loop("optimizer.apply_gradients")
        prepared.replicas.check("model.fit")
        buffer = prepared.buffer()

        def end() -> None:
            buffer.move_here()
            buffer.unscale("step", scaled, flags)
            buffer.pack()
            prepared.replicas.once(lambda: self._decide(prepared, buffer, True, True))

        if prepared.replicas.count > 1 or prepared.fit_window is not None:
            flags = None  # what is decided on is the sum over replicas, or over a window
        try:
            buffer.replace(pairs, loss)
            if not buffer.present:
                return
            if prepared.fit_window is None:
                self._listener.note_fit(prepared, scaled)
                end()
            else:
                self._check_followed(prepared)
                prepared.fit_window.add(buffer.present, end, lambda: self._listener.note_fit(prepared, scaled))
        finally:
            buffer.forget()

    def end_keras(
        self, prepared: PreparedOptimizer, pairs: Pairs, scaled: bool, loss: Tensor | None, flags: Tensor | None
    ) -> None:
        """Call :meth:`end_fit`; report the step to core where an eager loop in Keras's form made it."""
        self.end_fit(prepared, pairs, scaled, loss, flags)
        self._native_steps.after_eager_step(prepared.replicas)

    def note_deferred(self, losses: Sequence[Tensor]) -> None:
        """Report the step of an optimizer that was given to the session without a model."""
        self._native_steps.deferred_step(losses)

    def _check_loop(self, call: str) -> None:
        if self._scaler is not None and in_dataset_loop():
            raise errors.UnsupportedError(
                f"{call}: a loop over a tf.data.Dataset inside a tf.function does not wait for all that a step under a "
                "loss scale does; loop over the dataset outside of the step"
            )

    def _check_followed(self, prepared: PreparedOptimizer) -> None:
        if prepared.replicas.count > 1:
            raise errors.UnsupportedError(
                f"model.fit: accumulate_steps over {prepared.replicas.count} replicas works in your own loops only "
                "(amp.scale_loss, amp.step); leave it out, or write the loop"
            )
        if not self._native_steps.followed:
            raise errors.UnsupportedError(
                "accumulate_steps: the micro-batches of Keras's own calls are counted in the fit of a model given to "
                "amp.prepare; give it the model that fit trains, or write the loop with amp.scale_loss and amp.step"
            )

    def _decide(self, prepared: PreparedOptimizer, buffer: GradientBuffer, update: bool, alone: bool) -> StepResult:
        if not self._float8.in_use:
            return self._end(prepared, buffer, update, alone)
        with self._float8.step(self._skipped(buffer), update):
            return self._end(prepared, buffer, update, alone)

    def _skipped(self, buffer: GradientBuffer) -> Tensor | None:
        """Return whether the step is skipped or dropped, a bool scalar; None for never."""
        dropped = buffer.condition()
        if self._scaler is None:
            return dropped
        bad = tf.logical_not(tf.reduce_all(buffer.flags))
        return bad if dropped is None else bad | dropped

    def _end(self, prepared: PreparedOptimizer, buffer: GradientBuffer, update: bool, alone: bool) -> StepResult:
        if self._scaler is None:
            return _apply_unless(prepared, buffer.condition())
        if tf.executing_eagerly():
            return self._now(self._scaler, prepared, buffer, update)
        return self._traced(self._scaler, prepared, buffer, update, alone)

    def _now(
        self, scaler: DeviceScaler, prepared: PreparedOptimizer, buffer: GradientBuffer, update: bool
    ) -> StepResult:
        finite, dropped = bool(tf.reduce_all(buffer.flags)), _holds(buffer.condition())
        if not finite:
            _note_skip(scaler, prepared, buffer)
        elif not dropped:
            prepared.apply()
        reason: StepReason = result.NON_FINITE if not finite else result.DISCARDED if dropped else result.APPLIED
        return _outcome(reason, *scaler.step_now(prepared.number, finite, update=update, dropped=dropped))

    def _traced(
        self, scaler: DeviceScaler, prepared: PreparedOptimizer, buffer: GradientBuffer, update: bool, alone: bool
    ) -> StepResult:
        finite, dropped = tf.reduce_all(buffer.flags), buffer.condition()
        applied = finite if dropped is None else finite & tf.logical_not(dropped)

        def count() -> None:
            scaler.count_where(finite, applied, update=update)
            for variable, value in _skip_report(scaler, prepared, buffer):
                variable.assign(tf.where(finite, variable.read_value(), value))

        if prepared.update_where(applied, count):
            return not_in_trace()
        together = update and alone
        skip = functools.partial(_note_skip, scaler, prepared, buffer)
        scaler.step(finite, prepared.apply, skip, alone=together, dropped=dropped)
        if update and not together:
            scaler.update()
        return not_in_trace()


def _note_skip(scaler: DeviceScaler, prepared: PreparedOptimizer, buffer: GradientBuffer) -> None:
    """Keep on the device what the report of a skipped step needs."""
    for variable, value in _skip_report(scaler, prepared, buffer):
        variable.assign(value)


def _skip_report(
    scaler: DeviceScaler, prepared: PreparedOptimizer, buffer: GradientBuffer
) -> list[tuple[Variable, Tensor]]:
    """Return what the report of a skipped step needs, and the variable that keeps each."""
    loss_finite = prepared.loss_finite()
    return [
        (prepared.nonfinite, prepared.nonfinite_in(buffer.flags, list(buffer.present))),
        (scaler.skipped_by, tf.constant(prepared.number, tf.int64)),
        (scaler.loss_finite, tf.constant(UNKNOWN, tf.int64) if loss_finite is None else tf.cast(loss_finite, tf.int64)),
    ]


def _holds(condition: Tensor | None) -> bool:
    return condition is not None and bool(condition)


def _apply_unless(prepared: PreparedOptimizer, condition: Tensor | None) -> StepResult:
    """Run a step without a loss scale."""
    if condition is not None and not tf.executing_eagerly():
        tf.cond(condition, branch(lambda: None), branch(prepared.apply))
        return not_in_trace()
    dropped = _holds(condition)
    if not dropped:
        prepared.apply()
    return _outcome(result.DISCARDED if dropped else result.APPLIED, 1.0, 1.0)


def _outcome(reason: StepReason, scale: float, after: float) -> StepResult:
    if not tf.executing_eagerly():
        return not_in_trace()
    return StepResult.of(reason == result.APPLIED, reason == result.NON_FINITE, reason, scale, after)
