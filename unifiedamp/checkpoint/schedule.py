"""What a session's state holds of its schedule: its policies, and the iterations that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ..backend import Backend
from ..errors import AmpError, CheckpointError, StateWarning
from ..loss_scale import ScaleState
from ..loss_scale.saved_values import checked_count, shortened
from ..policy import PolicySchedule
from ..training.scheduled_policy import ScheduledPolicy
from ..training.step_loop import StepLoop
from .amax_history import keeps_history


class Session(Protocol):
    """The part of ``Amp`` that has a schedule."""

    @property
    def backend(self) -> Backend:
        """The session's."""

    @property
    def step_loop(self) -> StepLoop:
        """The calls of its steps."""


def dump_schedule(policies: ScheduledPolicy) -> dict[str, Any]:
    """Return the position in a schedule as plain JSON values."""
    return {"policies": str(policies.schedule), "step": policies.step}


def read_schedule(raw: Any) -> tuple[PolicySchedule, int] | None:
    """Return schedule and position of a state; None where it has none.

    Raises:
        CheckpointError: they cannot be read.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping) or not isinstance(raw.get("policies"), str) or "step" not in raw:
        raise CheckpointError(f"this state's 'schedule' must have policies and step, got {shortened(raw)}")
    try:
        return PolicySchedule.of(raw["policies"]), checked_count(raw["step"], "schedule.step")
    except CheckpointError:
        raise
    except AmpError as error:
        raise CheckpointError(f"this state's schedule cannot be read: {error}") from error


@contextmanager
def going_on(amp: Session, saved: tuple[PolicySchedule, int] | None, state: ScaleState | None) -> Iterator[bool]:
    """Go on from a position in the schedule, with the policy in force there; an exception inside takes that back.

    Yields whether a warning was given of another schedule, and so of another policy.

    Args:
        amp: the session.
        saved: what :func:`read_schedule` returned.
        state: that of the loss scale, whose counts stand for a position where there is none.
    """
    warn = amp.backend.spec.warn
    if amp.backend.spec.schedule is None:
        if saved is not None:
            warn(
                f"the state was saved under schedule {str(saved[0])!r}, at iteration {saved[1]}; this session has one "
                "policy throughout",
                StateWarning,
            )
        yield saved is not None
        return
    policies = amp.step_loop.policies
    assert policies is not None  # made for each schedule
    step = _place(amp, state) if saved is None else saved[1]
    other = saved is not None and saved[0] != policies.schedule
    if saved is not None and other:
        warn(
            f"the state was saved under schedule {str(saved[0])!r}; this session goes on by "
            f"{str(policies.schedule)!r}, at iteration {step}",
            StateWarning,
        )
    kept = amp.backend.amax_history.read() if keeps_history(policies.policy) else None
    try:
        with policies.loading(step):
            yield other
    except BaseException:
        if kept is not None:
            amp.backend.amax_history.write(kept)
        raise


def _place(amp: Session, state: ScaleState | None) -> int:
    """Return the position of a state that was saved without a schedule: its steps, of each optimizer."""
    steps = 0 if state is None else state.applied_steps + state.skipped_steps
    step = steps // max(len(amp.step_loop.order.slots), 1)
    amp.backend.spec.warn(
        f"the state was saved without a schedule; this session goes on at iteration {step}, by its count of optimizer "
        "steps",
        StateWarning,
    )
    return step
