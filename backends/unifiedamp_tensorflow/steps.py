"""The end of a window: apply or skip, once for all replicas, and move the scale. For loops and for ``model.fit``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import NonFiniteReport, StepResult, result

from .bound import Bound
from .checks import not_in_trace
from .gradients import Gradients
from .scaler import DeviceScaler


class Steps:
    """Ends the windows of one session.

    Args:
        scaler: the session's, None without loss scaling.

    Attributes:
        last_report: what was not finite at the last step that was skipped eagerly.
    """

    def __init__(self, scaler: DeviceScaler | None) -> None:
        self._scaler = scaler
        self.last_report: NonFiniteReport | None = None

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

    def end_fit(self, bound: Bound, pairs: Iterable[tuple[Any, Any]], scaled: bool) -> None:
        """One whole step on the gradients that ``model.fit`` made.

        Args:
            bound: whose gradients.
            pairs: (gradient, variable), None for a gradient that is not there.
            scaled: they are multiplied by the scale (Keras 3).
        """
        bound.replicas.check("model.fit")
        window = bound.window()
        try:
            window.take(pairs)
            if window.present:
                window.unscale("step", scaled)
                bound.replicas.once(lambda: self._decide(bound, window, True, True))
        finally:
            window.forget()

    def _decide(self, bound: Bound, window: Gradients, update: bool, alone: bool) -> StepResult:
        if self._scaler is None:
            bound.apply()
            return _outcome(True, 1.0, 1.0)
        if tf.executing_eagerly():
            return self._now(self._scaler, bound, window, update)
        return self._traced(self._scaler, bound, window, update, alone)

    def _now(self, scaler: DeviceScaler, bound: Bound, window: Gradients, update: bool) -> StepResult:
        flags = window.flags.numpy()
        finite = bool(flags.all())
        if finite:
            bound.apply()
        else:
            names = tuple(name for name, good in zip(window.present, flags, strict=True) if not good)
            loss_finite = bound.loss_finite()
            self.last_report = NonFiniteReport(names, None if loss_finite is None else bool(loss_finite))
        return _outcome(finite, *scaler.step_now(finite, update=update))

    @staticmethod
    def _traced(scaler: DeviceScaler, bound: Bound, window: Gradients, update: bool, alone: bool) -> StepResult:
        def skip() -> None:
            bound.note_bad(window.flags, list(window.present))
            loss_finite = bound.loss_finite()
            if loss_finite is not None:
                scaler.loss_finite.assign(loss_finite)

        together = update and alone
        scaler.step(tf.reduce_all(window.flags), bound.apply, skip, alone=together)
        if update and not together:
            scaler.update()
        return not_in_trace()


def _outcome(applied: bool, scale: float, after: float) -> StepResult:
    if not tf.executing_eagerly():
        return not_in_trace()
    return StepResult.of(applied, not applied, result.APPLIED if applied else result.NON_FINITE, scale, after)
