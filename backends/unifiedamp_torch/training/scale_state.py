"""The loss scale's state: on the host where looking is free, on the device where looking would wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from unifiedamp.backend import LossScale, ScaleState, StepResult, StepValues, result

from . import update

FLOAT32_MAX = torch.finfo(torch.float32).max


class Found(NamedTuple):
    """What was found in one optimizer's gradients.

    Attributes:
        counted: float32 pair ``[1, found_inf]``: added to a pair of counts it counts a step.
        inf: ``found_inf``, the second half of it; the finite-check kernel writes there.
    """

    counted: torch.Tensor
    inf: torch.Tensor


def step_values(found_inf: bool, before: float, after: float) -> StepValues:
    """Return a step's outcome in plain values."""
    return StepValues(not found_inf, found_inf, result.NON_FINITE if found_inf else result.APPLIED, before, after)


class HostScale:
    """Plain numbers, moved by the reference transition itself; the device holds a copy of the scale.

    Args:
        settings: the loss scale in force.
        scale: float32 scalar that losses are multiplied by; written when the scale moves.
        tracker: int32 scalar, torch's name for ``good_steps``.
    """

    def __init__(self, settings: LossScale, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        self._settings = settings
        self._scale = scale
        self._tracker = tracker
        self._applied = self._skipped = 0
        self._moving = settings.initial_state()

    def count(self, found: Found) -> None:
        """Count one optimizer step, by what was found in its gradients."""
        if found.inf.item():
            self._skipped += 1
        else:
            self._applied += 1

    def update(self, founds: Sequence[Found]) -> None:
        """End an iteration whose steps found ``founds`` (one at least)."""
        before = self._moving
        self._moving = self._settings.next_state(before, any(found.inf.item() for found in founds))
        if self._moving.scale != before.scale:
            self._scale.fill_(self._moving.scale)
        self._tracker.fill_(self._moving.good_steps)

    def result(self, found: Found, before: float, after: float) -> StepResult:
        """Return the outcome of a step, from two marks."""
        return StepResult.of(*step_values(bool(found.inf.item()), before, after))

    def mark(self) -> float:
        """Return the present scale in a form that later steps do not change."""
        return self._moving.scale

    def forget_mark(self) -> None:
        """Nothing moves the scale but the host."""

    def settle(self) -> None:
        """Bring the device's copy up to date, where an interruption kept it from that."""
        self._scale.fill_(self._moving.scale)
        self._tracker.fill_(self._moving.good_steps)

    def peek(self) -> ScaleState:
        """Return all numbers."""
        return self.read()

    def read(self) -> ScaleState:
        """Return all numbers."""
        return replace(self._moving, applied_steps=self._applied, skipped_steps=self._skipped)

    def write(self, state: ScaleState) -> None:
        """Take over all numbers."""
        self._moving = state
        self._applied, self._skipped = state.applied_steps, state.skipped_steps
        self._scale.fill_(state.scale)
        self._tracker.fill_(state.good_steps)


class DeviceScale:
    """The same as device scalars: no method but :meth:`read` waits for the device.

    Attributes:
        move: what moves the state: :func:`move`, or a compiled form of it.
    """

    def __init__(self, settings: LossScale, scale: torch.Tensor, tracker: torch.Tensor) -> None:
        self._settings = settings
        self._scale = scale
        self._tracker = tracker
        # Counts stay exact; Apple's GPU has no float64.
        wide = torch.float32 if scale.device.type == "mps" else torch.float64
        self._bad = torch.zeros_like(scale, dtype=wide)
        # Attempted and skipped steps, side by side, so that one addition counts a step.
        self._counts = torch.zeros(2, dtype=wide, device=scale.device)
        self._mark: torch.Tensor | None = None
        self._asked: Asked | None = None
        self.move: Callable[..., None] = move

    def count(self, found: Found) -> None:
        """See :meth:`HostScale.count`."""
        self._counts.add_(found.counted)

    def update(self, founds: Sequence[Found]) -> None:
        """See :meth:`HostScale.update`."""
        found = founds[0].inf if len(founds) == 1 else torch.stack([each.inf for each in founds]).amax()
        self.move(self._settings, self._scale, self._tracker, self._bad, found)
        self._mark = None

    def result(self, found: Found, before: torch.Tensor, after: torch.Tensor) -> StepResult:
        """See :meth:`HostScale.result`."""
        return DeviceResult(found.inf, before, after)

    def mark(self) -> torch.Tensor:
        """See :meth:`HostScale.mark`."""
        if self._mark is None:
            self._mark = self._scale.clone()
        return self._mark

    def forget_mark(self) -> None:
        """Take the next mark anew: a captured step moves the scale behind Python's back."""
        self._mark = None

    def settle(self) -> None:
        """See :meth:`HostScale.settle`: bounds may not have been applied."""
        self._scale.clamp_(*self._settings.scale_bounds)
        self._mark = None

    def read(self) -> ScaleState:
        """See :meth:`HostScale.read`; waits for the device."""
        attempted, skipped = (int(count) for count in self._counts.tolist())
        return ScaleState(
            scale=self._scale.item(),
            good_steps=int(self._tracker.item()),
            bad_steps=int(self._bad.item()),
            applied_steps=attempted - skipped,
            skipped_steps=skipped,
        )

    def peek(self) -> ScaleState | None:
        """Return what the last peek asked for, if it has arrived, and ask again; never waits."""
        asked, self._asked = self._asked, None
        if asked is not None and not asked.arrived():
            self._asked = asked
            return None
        self._asked = Asked(torch.cat([torch.stack([self._scale, self._tracker, self._bad]), self._counts]))
        return asked.state() if asked is not None else None

    def write(self, state: ScaleState) -> None:
        """See :meth:`HostScale.write`."""
        self._asked = None
        self._scale.fill_(state.scale)
        self._tracker.fill_(state.good_steps)
        self._bad.fill_(state.bad_steps)
        attempted = [float(state.applied_steps + state.skipped_steps), float(state.skipped_steps)]
        self._counts.copy_(torch.tensor(attempted, dtype=self._counts.dtype))
        self._mark = None


class Asked:
    """Numbers on their way from the device: scale, good and bad steps, attempted and skipped steps."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._event = torch.Event(numbers.device) if numbers.device.type != "cpu" else None
        self._numbers = numbers
        if self._event is not None:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event.record()

    def arrived(self) -> bool:
        """Tell whether the numbers are there."""
        return self._event is None or self._event.query()

    def state(self) -> ScaleState:
        """Return them; they must have arrived."""
        scale, good, bad, attempted, skipped = self._numbers.tolist()
        return ScaleState(scale, int(good), int(bad), int(attempted - skipped), int(skipped))


class DeviceResult(StepResult):
    """A step's outcome on the device: ``found_inf`` and the scale before and after, float32 scalars."""

    __slots__ = ("_tensors",)

    def __init__(self, found_inf: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
        self._tensors = (found_inf, before, after)
        super().__init__(self._look)

    def _look(self) -> StepValues:
        found_inf, before, after = (each.item() for each in self._tensors)
        return step_values(bool(found_inf), before, after)

    def copied(self) -> DeviceResult:
        """Return the present values, which a later replay leaves alone."""
        return DeviceResult(*[each.clone() for each in self._tensors])


def move(
    settings: LossScale, scale: torch.Tensor, tracker: torch.Tensor, bad: torch.Tensor, found: torch.Tensor
) -> None:
    """Move the state in place by one iteration, equal to ``settings.next_state``; ``found`` is a float32 0 or 1."""
    low, high = settings.scale_bounds
    if settings.hysteresis > 1 or high * settings.growth_factor > FLOAT32_MAX:
        # torch's own kernel knows no hysteresis, and keeps the scale where growth would overflow.
        update.move(settings, scale, tracker, bad, found)
        return
    torch.addcmul(found, bad, found, out=bad)  # (bad + 1) · found in one kernel
    torch._amp_update_scale_(
        scale, tracker, found, settings.growth_factor, settings.backoff_factor, settings.growth_interval
    )
    scale.clamp_(low, high)
