"""Looks at the loss scale between steps: stops a hopeless run, and tells observers what moved."""

from __future__ import annotations

from typing import Any

from ..backend import Backend
from ..errors import LossScaleExhausted, first_names
from ..loss_scale import LossScale, ScaleState

LOOK_EVERY = 24
"""Steps between two looks where a look waits for the device, or sees what was there at the look before: exhaustion is
noticed within 50."""


class Watch:
    """Reads the scale state after steps, as seldom as it may.

    Args:
        backend: whose state is read.
        loss_scale: the settings, for ``max_consecutive_skips``.

    Attributes:
        steps: how many steps were counted.
    """

    def __init__(self, backend: Backend, loss_scale: LossScale) -> None:
        self._training = backend.training
        self._free = backend.device.reads_without_sync
        self._diagnosing = False
        self._limit = loss_scale.max_consecutive_skips
        self._left = 0
        self.steps = 0
        self._last: ScaleState | None = None
        self._near = self._curious = False
        self._hooks: Any = None
        self.expect(None)

    def expect(self, state: ScaleState | None) -> None:
        """Take ``state`` as what was last seen (after loading a checkpoint)."""
        self._last = state
        self._come_near((0 if state is None else state.bad_steps) >= self._limit - 1)

    @property
    def hooks(self) -> Any:
        """What calls the observers; None without any."""
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: Any) -> None:
        self._hooks = hooks
        self._tell_backend()

    @property
    def curious(self) -> bool:
        """Whether somebody wants to know the tensors of every skipped step."""
        return self._curious

    @curious.setter
    def curious(self, wanted: bool) -> None:
        self._curious = wanted
        self._tell_backend()

    def _tell_backend(self) -> None:
        asked = self._curious or self._hooks is not None
        self._diagnosing = self._near or (asked and self._free)
        self._training.collect_nonfinite_report(self._diagnosing)
        self._training.keep_skip_report(asked)

    def _come_near(self, near: bool) -> None:
        self._near = near
        self._tell_backend()
        self._left = self._interval()

    def after_step(self) -> None:
        """Count a step; look when it is time.

        Raises:
            LossScaleExhausted: ``max_consecutive_skips`` steps in a row were skipped.
        """
        self.steps += 1
        self._left -= 1
        if self._left <= 0:
            self.look()

    def look(self) -> None:
        """Look now.

        Raises:
            LossScaleExhausted: see :meth:`after_step`.
        """
        must_know = self._hooks is not None or self._diagnosing
        state = self._training.read_state() if must_know else self._training.poll_state()
        if state is None:
            self._left = self._interval()
            return
        if self._hooks is not None:
            self._tell(state)
        if state.bad_steps >= self._limit and self._diagnosing:
            self._stop(state)
        # One step more is needed to learn which tensors are to blame.
        self._come_near(state.bad_steps >= self._limit - 1)

    def _interval(self) -> int:
        every_step = self._free or self._diagnosing or self._hooks is not None
        return 1 if every_step else LOOK_EVERY

    def _tell(self, state: ScaleState) -> None:
        before, self._last = self._last, state
        if before is None:
            return
        if state.skipped_steps > before.skipped_steps:
            self._hooks.on_step_skipped(state=state, report=self._training.nonfinite_report())
        if state.scale != before.scale:
            self._hooks.on_scale_changed(before=before.scale, after=state.scale, state=state)

    def _stop(self, state: ScaleState) -> None:
        report = self._training.nonfinite_report()
        if report.loss_was_finite is False:
            cause = "the loss itself was already inf or nan before scaling: no loss scale can mend a forward overflow"
        elif report.loss_was_finite:
            cause = "the loss was finite, so the backward pass overflows or makes nan"
        else:
            cause = "whether the loss was finite is not known"
        where = f"; gradients not finite: {first_names(report.tensors)}" if report.tensors else ""
        if self._hooks is not None:
            self._hooks.on_scale_exhausted(state=state, report=report)
        raise LossScaleExhausted(
            f"{state.bad_steps} steps in a row were skipped (max_consecutive_skips={self._limit}); the loss scale is "
            f"{state.scale:g} after {state.applied_steps} applied steps; {cause}{where}. Look at the data and the "
            "layers named, lower the learning rate, or keep those layers in float32 with layer_overrides",
            skips=state.bad_steps,
            scale=state.scale,
            tensors=report.tensors,
            loss_was_finite=report.loss_was_finite,
        )
