"""The end of a window: apply or skip, once for all replicas, and move the scale. For loops and for ``model.fit``."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import StepResult, errors, result

from .checks import not_in_trace
from .fit_events import Told
from .gradients import Gradients
from .prepared_optimizer import Bound
from .scaler import UNKNOWN, DeviceScaler


class Steps:
    """Ends the windows of one session.

    Args:
        scaler: the session's, None without loss scaling.
        told: told of steps that core does not see.
    """

    def __init__(self, scaler: DeviceScaler | None, told: Told) -> None:
        self._scaler, self._told = scaler, told

    def end(self, bound: Bound, *, update: bool, alone: bool) -> StepResult:
        """Apply or skip the gradients of a window that holds some.

        Args:
            bound: whose window.
            update: the iteration ends here, so the scale moves.
            alone: the session has no other optimizer.
        """
        window = bound.window()
        window.unscale("step")
        return bound.replicas.once(lambda: self._decide(bound, window, update, alone))  # type: ignore[no-any-return]

    def end_fit(
        self, bound: Bound, pairs: Iterable[tuple[Any, Any]], scaled: bool, loss: Any = None, flags: Any = None
    ) -> None:
        """One whole step, or a micro-batch of one, on the gradients that ``model.fit`` made.

        Args:
            bound: whose gradients.
            pairs: (gradient, variable), None for a gradient that is not there.
            scaled: they are multiplied by the scale (Keras 3).
            loss: the unscaled loss; None where it is not known.
            flags: which of the raw gradients hold only finite numbers; None to look at those given.
        """
        bound.replicas.check("model.fit")
        window = bound.window()

        def end() -> None:
            window.move_here()
            window.unscale("step", scaled, flags)
            bound.replicas.once(lambda: self._decide(bound, window, True, True))

        if bound.replicas.count > 1 or bound.fit_window is not None:
            flags = None  # what is decided on is the sum over replicas, or over a window
        try:
            window.take(pairs, loss)
            if not window.present:
                return
            if bound.fit_window is None:
                end()
            else:
                self._check_followed(bound)
                bound.fit_window.add(window.present, end)
        finally:
            window.forget()

    def end_keras(self, bound: Bound, pairs: Iterable[tuple[Any, Any]], scaled: bool, loss: Any, flags: Any) -> None:
        """:meth:`end_fit`, and a word to core where it was a step of an eager loop in Keras's form."""
        self.end_fit(bound, pairs, scaled, loss, flags)
        self._told.after_eager_step(bound.replicas)

    def _check_followed(self, bound: Bound) -> None:
        if bound.replicas.count > 1:
            raise errors.UnsupportedError(
                f"model.fit: accumulate_steps over {bound.replicas.count} replicas is for loops of your own alone "
                "(amp.scale_loss, amp.step); leave it out, or write the loop"
            )
        if not self._told.followed:
            raise errors.UnsupportedError(
                "accumulate_steps: the micro-batches of Keras's own calls are counted in the fit of a model given to "
                "amp.prepare; give it the model that fit trains, or write the loop with amp.scale_loss and amp.step"
            )

    def _decide(self, bound: Bound, window: Gradients, update: bool, alone: bool) -> StepResult:
        if self._scaler is None:
            bound.apply()
            return _outcome(True, 1.0, 1.0)
        if tf.executing_eagerly():
            return self._now(self._scaler, bound, window, update)
        return self._traced(self._scaler, bound, window, update, alone)

    @staticmethod
    def _now(scaler: DeviceScaler, bound: Bound, window: Gradients, update: bool) -> StepResult:
        finite = bool(tf.reduce_all(window.flags))
        if finite:
            bound.apply()
        else:
            _note_bad(scaler, bound, window)
        return _outcome(finite, *scaler.step_now(finite, update=update))

    @staticmethod
    def _traced(scaler: DeviceScaler, bound: Bound, window: Gradients, update: bool, alone: bool) -> StepResult:
        together = update and alone
        skip = functools.partial(_note_bad, scaler, bound, window)
        scaler.step(tf.reduce_all(window.flags), bound.apply, skip, alone=together)
        if update and not together:
            scaler.update()
        return not_in_trace()


def _note_bad(scaler: DeviceScaler, bound: Bound, window: Gradients) -> None:
    """Keep on the device what the report of a skipped step says."""
    bound.note_bad(window.flags, list(window.present))
    scaler.skipped_by.assign(bound.number)
    loss_finite = bound.loss_finite()
    scaler.loss_finite.assign(UNKNOWN if loss_finite is None else tf.cast(loss_finite, tf.int64))


def _outcome(applied: bool, scale: float, after: float) -> StepResult:
    if not tf.executing_eagerly():
        return not_in_trace()
    return StepResult.of(applied, not applied, result.APPLIED if applied else result.NON_FINITE, scale, after)
