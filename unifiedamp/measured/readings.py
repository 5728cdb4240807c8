"""Losses and outcomes of steps, kept on the device until they are read together."""

from __future__ import annotations

from typing import Any

from ..backend import Backend
from ..backend.result import NON_FINITE, StepResult
from .log import finite


class Readings:
    """What was noted since the last reading.

    Args:
        backend: the session's.
        scaling: whether losses are scaled.

    Attributes:
        losses: steps before it, index of its optimizer, and the loss, native, of each loss.
        outcomes: step and outcome, of each step whose outcome is known.
        scaler: whose loss scale is read.
        clean: steps applied in a row, where each step is read.
    """

    def __init__(self, backend: Backend, scaling: bool) -> None:
        self._backend, self._scaling, self.scaler = backend, scaling, backend.training
        self.losses: list[tuple[int, int, Any]] = []
        self.outcomes: list[tuple[int, StepResult]] = []
        self._skipped = self._state_skipped = self.clean = 0

    def wait(self) -> None:
        """Wait for the last loss: from one wait to the next lie whole steps, on devices that work ahead as well."""
        if self.losses:
            self._numbers([self.losses[-1][2]])

    def forget(self) -> None:
        """Drop what was noted."""
        self.losses, self.outcomes = [], []

    def take(self) -> dict[str, Any]:
        """Read what was noted, and forget it.

        Returns:
            ``losses``: of each step, the mean of the losses of its first optimizer; ``others``: that of each further
            optimizer; ``scales``: [step, scale from then on, steps skipped until then]; ``state``: counters now.
        """
        losses, outcomes = self.losses, self.outcomes
        self.forget()
        steps: dict[int, dict[int, list[float]]] = {}
        for (step, index, _), number in zip(losses, self._numbers([loss for *_, loss in losses]), strict=True):
            steps.setdefault(step, {}).setdefault(index, []).append(number)
        rows = [[finite(sum(each) / len(each)) for each in named.values()] for named in steps.values()]
        state = self.scaler.read_state()
        self.clean = 0 if state.skipped_steps > self._state_skipped else self.clean + 1
        self._state_skipped = self._skipped = state.skipped_steps
        return {
            "losses": [row[0] for row in rows],
            "others": [row[1:] for row in rows] if any(len(row) > 1 for row in rows) else [],
            "scales": self._scales(outcomes, state),
            "state": {"scale": state.scale, "applied": state.applied_steps, "skipped": state.skipped_steps},
        }

    def _scales(self, outcomes: list[tuple[int, StepResult]], state: Any) -> list[list[float]]:
        if not self._scaling:
            return []
        found: list[list[float]] = []
        for step, outcome in outcomes:
            self._skipped += outcome.reason == NON_FINITE
            found.append([step, outcome.next_scale, self._skipped])
        if found:
            found[-1][2] = self._skipped
        return found

    def _numbers(self, losses: list[Any]) -> list[float]:
        """Return losses as numbers; what is on a device is read together."""
        parts = [[] if callable(loss) else _parts(loss) for loss in losses]
        means = iter(self._backend.device.means([one for each in parts for one in each]))
        numbers = [[next(means) for _ in each] for each in parts]
        return [sum(each) / len(each) if each else float(loss()) for each, loss in zip(numbers, losses, strict=True)]


def _parts(loss: Any) -> list[Any]:
    """Return the tensors of a loss: one, or one for each device."""
    parts = loss if isinstance(loss, (list, tuple)) else getattr(loss, "values", None)
    return list(parts) if isinstance(parts, (list, tuple)) else [loss]
