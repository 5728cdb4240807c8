"""Polls the loss scale between steps: stops a run that only skips, and notifies observers of changes."""

from __future__ import annotations

from typing import Any

from ..backend import Backend
from ..errors import LossScaleExhausted, first_names
from ..loss_scale import LossScale, ScaleState
from .observers import add_observer

POLL_INTERVAL = 24
"""Steps between two polls where reading the state would synchronize, or returns the values of the poll before:
exhaustion is noticed within 50 steps."""


class ScaleMonitor:
    """Polls the scale state after steps, as rarely as possible.

    Args:
        backend: whose state is read.
        loss_scale: the settings, for ``max_consecutive_skips``.

    Attributes:
        steps: how many steps were counted.
    """

    def __init__(self, backend: Backend, loss_scale: LossScale) -> None:
        self._training = backend.training
        self._device, self._distributed = backend.device, backend.distributed
        self._limit = loss_scale.max_consecutive_skips
        self.steps = 0
        self._last: ScaleState | None = None
        self._hooks: Any = None
        self._wants_skip_report = False
        self.expect(None)

    def expect(self, state: ScaleState | None) -> None:
        """Take ``state`` as the last one seen (after loading a checkpoint)."""
        self._last = state
        self._near_limit = (0 if state is None else state.bad_steps) >= self._limit - 1
        self._configure()
        self._left = self._until_due()

    @property
    def hooks(self) -> Any:
        """What calls the observers; None without any."""
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: Any) -> None:
        self._hooks = hooks
        self._configure()

    def add(self, observer: object) -> None:
        """Add an observer; see ``observers.add_observer``."""
        self.hooks = add_observer(self.hooks, observer)
        self.expect(self._training.read_state())

    @property
    def wants_skip_report(self) -> bool:
        """Whether the gradients behind every skipped step are to be reported."""
        return self._wants_skip_report

    @wants_skip_report.setter
    def wants_skip_report(self, wanted: bool) -> None:
        self._wants_skip_report = wanted
        self._configure()

    def _configure(self) -> None:
        wanted = self._wants_skip_report or self._hooks is not None
        self._collecting = self._near_limit or (wanted and self._device.reads_without_sync)
        self._training.collect_nonfinite_report(self._collecting)
        self._training.keep_skip_report(wanted)
        self._must_read = self._collecting or self._hooks is not None

    @property
    def _interval(self) -> int:
        # Compiling a step can end reading without a synchronization.
        return 1 if self._device.reads_without_sync or self._must_read else POLL_INTERVAL

    def _until_due(self) -> int:
        """Return how many steps are left to the next poll, the same on all ranks whatever one of them loaded."""
        interval = self._interval
        return interval - self.steps % interval

    def after_step(self) -> None:
        """Count a step; poll the scale when it is due.

        Raises:
            LossScaleExhausted: ``max_consecutive_skips`` steps in a row were skipped.
        """
        self.steps += 1
        self._left -= 1
        if self._left <= 0:
            self.poll()

    def poll(self) -> None:
        """Poll the scale now.

        Raises:
            LossScaleExhausted: see :meth:`after_step`.
        """
        state = self._training.read_state() if self._must_read else self._training.poll_state()
        if state is not None:
            if self._distributed:
                self._distributed.check_skips(state)
            if self._hooks is not None:
                self._notify(state)
            if state.bad_steps >= self._limit and self._collecting:
                self._stop(state)
            # The step after this one finds out which gradients are to blame.
            near = state.bad_steps >= self._limit - 1
            if near != self._near_limit:
                self._near_limit = near
                self._configure()
        self._left = self._until_due()

    def _notify(self, state: ScaleState) -> None:
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
