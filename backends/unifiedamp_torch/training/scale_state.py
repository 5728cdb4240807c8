"""The loss scale's state: on the host where reading the device waits for nothing, else on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch

from unifiedamp.backend import LossScale, ScaleState, StepReason, StepResult, StepValues, result

from ..device.kinds import traits
from .scale_transition import update_scale


class Found(NamedTuple):
    """What was found in one optimizer's gradients.

    Attributes:
        counted: float32 pair ``[1, found_inf]``: added to a pair of counts it counts a step. Of a step that a condition
            alone drops, ``[0, 0]``.
        inf: ``found_inf``, the second half of it; the finite-check kernel writes there.
        dropped: float32 scalar, 1 where the step is not applied, by a condition of ``amp.skip_if`` or because of
            ``inf``; None where there was no condition.
    """

    counted: torch.Tensor
    inf: torch.Tensor
    dropped: torch.Tensor | None = None

    @property
    def skipped(self) -> torch.Tensor:
        """Whether the step is not applied, for whatever reason: float32 scalar, 0 or 1."""
        return self.inf if self.dropped is None else self.dropped

    def dropped_if(self, condition: torch.Tensor) -> Found:
        """Return the same for a step that ``condition``, a float32 scalar, 0 or 1, drops."""
        counted = torch.stack([torch.maximum(1 - condition, self.inf), self.inf])
        return Found(counted, counted[1], torch.maximum(condition, self.inf))

    def judges(self) -> bool:
        """Return whether the step says something of the scale; waits for the device."""
        return self.dropped is None or bool(self.counted[0].item())


def step_values(found_inf: bool, skipped: bool, before: float, after: float) -> StepValues:
    """Return a step's outcome in plain values."""
    reason: StepReason = result.NON_FINITE if found_inf else result.DISCARDED if skipped else result.APPLIED
    return StepValues(not skipped, found_inf, reason, before, after)


class ScaleHolder(Protocol):
    """The scale and its counters, on the host or on the device.

    Attributes:
        scale: float32 scalar on the device that losses are multiplied by.
    """

    scale: torch.Tensor

    def count(self, found: Found) -> None:
        """Count one optimizer step, by what was found in its gradients."""

    def update(self, founds: Sequence[Found]) -> None:
        """End an iteration whose steps found ``founds`` (one at least)."""

    def result(self, found: Found, before: Any, after: Any) -> StepResult:
        """Return the outcome of a step, from two marks."""

    def mark(self) -> Any:
        """Return the present scale in a form that later steps do not change."""

    def forget_mark(self) -> None:
        """Take the next mark anew: a captured step updates the scale without running Python."""

    def repair(self) -> None:
        """Complete an update of the scale that was interrupted."""

    def read(self) -> ScaleState:
        """Return all numbers; may wait for the device."""

    def poll(self) -> ScaleState | None:
        """Return what the last poll requested, if it has arrived, and request it again; never waits."""

    def write(self, state: ScaleState) -> None:
        """Set all numbers."""


class HostScale:
    """Plain numbers, updated by the reference transition itself; the device holds a copy of the scale.

    Args:
        settings: the loss scale in force.
        scale: float32 scalar that losses are multiplied by; written when the scale changes.
        tracker: int32 scalar, torch's name for ``good_steps``.
    """

    def __init__(self, settings: LossScale, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        self._settings = settings
        self.scale = scale
        self._tracker = tracker
        self._applied = self._skipped = 0
        self._state = settings.initial_state()

    def count(self, found: Found) -> None:
        if found.inf.item():
            self._skipped += 1
        elif found.judges():
            self._applied += 1

    def update(self, founds: Sequence[Found]) -> None:
        before = self._state
        if not any(found.judges() for found in founds):
            return
        self._state = self._settings.next_state(before, any(found.inf.item() for found in founds))
        if self._state.scale != before.scale:
            self.scale.fill_(self._state.scale)
        self._tracker.fill_(self._state.good_steps)

    def result(self, found: Found, before: float, after: float) -> StepResult:
        return StepResult.of(*step_values(bool(found.inf.item()), bool(found.skipped.item()), before, after))

    def mark(self) -> float:
        return self._state.scale

    def forget_mark(self) -> None:
        """See ``ScaleHolder``: the host alone updates the scale."""

    def repair(self) -> None:
        """See ``ScaleHolder``: the device's copy may be out of date."""
        self.scale.fill_(self._state.scale)
        self._tracker.fill_(self._state.good_steps)

    def poll(self) -> ScaleState:
        return self.read()

    def read(self) -> ScaleState:
        return replace(self._state, applied_steps=self._applied, skipped_steps=self._skipped)

    def write(self, state: ScaleState) -> None:
        self._state = state
        self._applied, self._skipped = state.applied_steps, state.skipped_steps
        self.scale.fill_(state.scale)
        self._tracker.fill_(state.good_steps)


class DeviceScale:
    """The same as device scalars: no method but :meth:`read` waits for the device.

    Attributes:
        transition: :func:`scale_transition.update_scale`, or its compiled form.
    """

    def __init__(self, settings: LossScale, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        self._settings = settings
        self.scale = scale
        self._tracker = tracker
        wide = traits(scale.device).wide_dtype  # counts stay exact
        self._bad, self._spent = (torch.zeros_like(scale, dtype=wide) for _ in range(2))
        # Attempted and skipped steps, side by side, so that one addition counts a step.
        self._counts = torch.zeros(2, dtype=wide, device=scale.device)
        self._mark: torch.Tensor | None = None
        self._pending: PendingRead | None = None
        self.transition: Callable[..., None] = update_scale

    def count(self, found: Found) -> None:
        self._counts.add_(found.counted)

    def update(self, founds: Sequence[Found]) -> None:
        found = founds[0].inf if len(founds) == 1 else torch.stack([each.inf for each in founds]).amax()
        spent = self._spent if self._settings.keeps_hysteresis else None
        kept = () if spent is None else (spent,)
        numbers = (self.scale, self._tracker, self._bad, *kept)
        droppable = any(each.dropped is not None for each in founds)
        before = [number.clone() for number in numbers] if droppable else []
        self.transition(self._settings, self.scale, self._tracker, self._bad, found, spent)
        if droppable:
            judged = torch.stack([each.counted[0] for each in founds]).amax()
            for number, old in zip(numbers, before, strict=True):
                number.copy_(torch.where(judged > 0, number, old))
        self._mark = None

    def result(self, found: Found, before: torch.Tensor, after: torch.Tensor) -> StepResult:
        return DeviceResult(found.inf, found.skipped, before, after)

    def mark(self) -> torch.Tensor:
        if self._mark is None:
            self._mark = self.scale.clone()
        return self._mark

    def forget_mark(self) -> None:
        self._mark = None

    def repair(self) -> None:
        """See ``ScaleHolder``: bounds may not have been applied."""
        self.scale.clamp_(*self._settings.scale_bounds)
        self._mark = None

    def read(self) -> ScaleState:
        """See ``ScaleHolder``; waits for the device."""
        attempted, skipped = (int(count) for count in self._counts.tolist())
        return ScaleState(
            scale=self.scale.item(),
            good_steps=int(self._tracker.item()),
            bad_steps=int(self._bad.item()),
            applied_steps=attempted - skipped,
            skipped_steps=skipped,
            hysteresis_steps=int(self._spent.item()),
        )

    def poll(self) -> ScaleState | None:
        pending, self._pending = self._pending, None
        if pending is not None and not pending.arrived():
            self._pending = pending
            return None
        numbers = torch.stack([self.scale, self._tracker, self._bad, self._spent])
        self._pending = PendingRead(torch.cat([numbers, self._counts]))
        return pending.state() if pending is not None else None

    def write(self, state: ScaleState) -> None:
        self._pending = None
        self.scale.fill_(state.scale)
        self._tracker.fill_(state.good_steps)
        self._bad.fill_(state.bad_steps)
        self._spent.fill_(state.hysteresis_steps)
        attempted = [float(state.applied_steps + state.skipped_steps), float(state.skipped_steps)]
        self._counts.copy_(torch.tensor(attempted, dtype=self._counts.dtype))
        self._mark = None


class PendingRead:
    """Numbers being copied from the device: scale, good, bad and hysteresis steps, attempted and skipped steps."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._event = torch.Event(numbers.device) if traits(numbers.device).asynchronous else None
        self._numbers = numbers
        if self._event is not None:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event.record()

    def arrived(self) -> bool:
        """Return whether the numbers have arrived."""
        return self._event is None or self._event.query()

    def state(self) -> ScaleState:
        """Return the numbers; they must have arrived."""
        scale, *counts = self._numbers.tolist()
        good, bad, spent, attempted, skipped = map(int, counts)
        return ScaleState(scale, good, bad, attempted - skipped, skipped, spent)


class DeviceResult(StepResult):
    """A step's outcome on the device: ``found_inf``, whether it was skipped for any reason, and the scale before and
    after, float32 scalars.
    """

    __slots__ = ("_tensors",)

    def __init__(
        self, found_inf: torch.Tensor, skipped: torch.Tensor, before: torch.Tensor, after: torch.Tensor
    ) -> None:
        self._tensors = (found_inf, skipped, before, after)
        super().__init__(self._values_now)

    def _values_now(self) -> StepValues:
        found_inf, skipped, before, after = (each.item() for each in self._tensors)
        return step_values(bool(found_inf), bool(skipped), before, after)

    def copied(self) -> DeviceResult:
        """Return a copy that later replays do not change."""
        return DeviceResult(*[each.clone() for each in self._tensors])
