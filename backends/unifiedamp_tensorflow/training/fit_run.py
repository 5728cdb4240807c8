"""One call of Keras's ``fit``: the numbers that it logs, and what is called when it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .scaler import DeviceScaler

LOSS_SCALE, SKIPPED_STEPS = "loss_scale", "skipped_steps"
"""Names of a session's numbers in Keras's logs."""


class FitRun:
    """A call of ``fit`` that is running.

    Args:
        scaler: the session's loss scale; None without one.

    Attributes:
        logs_numbers: whether the session's numbers are in the logs.
        on_error: called with the exception that ended the call; Keras then calls ``on_train_end`` of no callback.
    """

    def __init__(self, scaler: DeviceScaler | None) -> None:
        self._scaler = scaler
        self.logs_numbers = False
        self.on_error: list[Callable[[BaseException], None]] = []

    def fail(self, error: BaseException) -> None:
        """Call what waits for the exception that ends the call."""
        while self.on_error:
            self.on_error.pop()(error)

    def with_numbers(self, logs: Any) -> Any:
        """Return a step's logs with the session's numbers, as tensors that nothing waits for."""
        if not self.logs_numbers or not isinstance(logs, dict):
            return logs
        return {**logs, **{name: value for name, value in self._numbers().items() if name not in logs}}

    def epoch_logs(self, make: Callable[[Any], Any], logs: Any) -> Any:
        """Return an epoch's logs as Keras makes them of the last step's, with the numbers that are in those.

        Args:
            make: Keras's method, which compares the names in the logs with those of the metrics.
            logs: of the last step.
        """
        if not self.logs_numbers or not isinstance(logs, dict):
            return make(logs)
        numbers = {name: logs[name] for name in (LOSS_SCALE, SKIPPED_STEPS) if name in logs}
        made = make({name: value for name, value in logs.items() if name not in numbers})
        return {**made, **numbers} if isinstance(made, dict) else made

    def _numbers(self) -> dict[str, Any]:
        if self._scaler is None:
            return {LOSS_SCALE: 1.0, SKIPPED_STEPS: 0}
        return {LOSS_SCALE: self._scaler.scale.value(), SKIPPED_STEPS: self._scaler.skipped.value()}
