"""The state schema, one for every backend; reads foreign layouts too, and writes torch's.

A session's state is plain JSON::

    {"schema": "unifiedamp", "version": 1, "backend": "torch", "policy": "mixed_float16",
     "loss_scale": {"kind": "dynamic", "initial_scale": 65536.0, ...},
     "state": {"scale": 65536.0, "good_steps": 3, "bad_steps": 0, "applied_steps": 10, "skipped_steps": 2},
     "ema": [{"decay": 0.999, "warmup": false, "updates": [10], "weights": {"layer0.weight": {...}}}],
     "update": {"kind": "kahan", "seed": 0, "steps": [10], "compensation": {"layer0.weight": {...}}},
     "states": {"dtype": "bfloat16", "seed": 0, "steps": [10]},
     "amax_history": {"layer0": {...}}, "amax_history_sizes": {"layer0": [784, 256]},
     "schedule": {"policies": "0: mixed_float8 | 9000: mixed_bfloat16", "step": 4000}}

``hysteresis_steps`` is in the state where the loss scale keeps it, ``ema`` where the session keeps averages
(``Amp.ema``; see ``averages``), ``update`` where the policy has an ``update`` (see ``weight_updates``), ``states``
where it has a ``state_dtype`` (see ``optimizer_states``), ``amax_history`` and ``amax_history_sizes`` (each
layer's inputs and outputs) under float8 recipe "delayed" (see ``amax_history``), ``schedule`` where the policy changes
in the course of the run (see ``schedule``); ``policy`` is then the one in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from ..backend import Backend
from ..errors import CheckpointError, StateWarning
from ..loss_scale import DynamicLossScale, LossScale, ScaleState, parse_loss_scale
from ..loss_scale.foreign_layouts import read_foreign
from ..loss_scale.saved_values import checked_count, checked_scale, shortened
from ..policy import Policy
from ..training.ema import Averages
from ..training.step_loop import StepLoop
from .amax_history import (
    check_histories,
    dump_histories,
    dump_sizes,
    keeps_history,
    load_histories,
    read_histories,
    read_sizes,
)
from .averages import dump_averages, read_averages
from .optimizer_states import check_states, dump_states, load_states, read_states
from .schedule import dump_schedule, going_on, read_schedule
from .weight_updates import check_update, dump_update, load_update, read_update

SCHEMA = "unifiedamp"
VERSION = 1


class Session(Protocol):
    """The part of ``Amp`` that its state is made of."""

    backend: Backend
    loss_scale_settings: LossScale
    averages: Averages
    step_loop: StepLoop

    @property
    def policy(self) -> Policy:
        """The policy in force."""


@dataclass(frozen=True)
class SavedState:
    """A state read from any layout.

    Attributes:
        state: the numbers; None when the state was saved with loss scaling off in a layout that then holds nothing.
        loss_scale: the settings it was saved under, where the layout holds them.
        policy: the policy's text, where the layout holds it.
        source: the layout, for messages.
        held: the names of the settings that the layout holds; None for all.
        hysteresis_left: non-finite iterations before a backoff, where the layout counts down to it.
    """

    state: ScaleState | None
    loss_scale: LossScale | None
    policy: str | None
    source: str
    held: tuple[str, ...] | None = None
    hysteresis_left: int | None = None


def dump_session(amp: Session, moments: bool = False) -> dict[str, Any]:
    """Return the state of ``amp`` as plain JSON values; see ``Amp.state_dict``."""
    averages = amp.averages.state()
    kept: dict[str, Any] = {"ema": dump_averages(averages)} if averages else {}
    if amp.policy.update is not None:
        kept["update"] = dump_update(amp.backend, amp.policy)
    if amp.policy.state_dtype is not None or moments:
        kept["states"] = dump_states(amp.backend, amp.policy, moments)
    if keeps_history(amp.policy):
        kept["amax_history"] = dump_histories(amp.backend)
        kept["amax_history_sizes"] = dump_sizes(amp.backend)
    if amp.backend.spec.schedule is not None and amp.step_loop.policies is not None:
        kept["schedule"] = dump_schedule(amp.step_loop.policies)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "backend": amp.backend.name,
        "policy": str(amp.policy.replace(loss_scale=None)),
        "loss_scale": amp.loss_scale_settings.to_dict(),
        "state": _dump_state(amp.backend.training.read_state(), amp.loss_scale_settings),
        **kept,
    }


def _dump_state(state: ScaleState, settings: LossScale) -> dict[str, Any]:
    numbers = asdict(state)
    if not settings.keeps_hysteresis:
        del numbers["hysteresis_steps"]
    return numbers


def load_session(
    amp: Session, restart: Callable[[ScaleState], None], raw: Mapping[str, Any], restart_scale: bool
) -> None:
    """Check ``raw`` wholly, then continue from it; see ``Amp.load_state_dict``. ``restart`` continues from a scale."""
    amp.averages.check_idle("load_state_dict")
    saved = read_saved(raw)
    place = read_schedule(raw.get("schedule")) if "schema" in raw else None  # foreign states have none
    with going_on(amp, place, saved.state) as warned:
        saved = replace(saved, policy=None) if warned else saved
        _load(amp, restart, raw, restart_scale, saved)


def _load(
    amp: Session, restart: Callable[[ScaleState], None], raw: Mapping[str, Any], restart_scale: bool, saved: SavedState
) -> None:
    state = _state_here(amp, saved, restart_scale)
    averages = read_averages(raw.get("ema", ())) if "schema" in raw else []  # foreign states have none
    update = read_update(raw.get("update")) if "schema" in raw else None
    states = read_states(raw.get("states")) if "schema" in raw else None
    histories = read_histories(raw.get("amax_history")) if "schema" in raw else None
    sizes = read_sizes(raw.get("amax_history_sizes"))
    amp.averages.check(averages)
    check_update(amp.backend, amp.policy, update)
    check_states(amp.backend, amp.policy, states)
    check_histories(amp.backend, amp.policy, histories, sizes)
    restart(state)
    load_update(amp.backend, amp.policy, update)
    load_states(amp.backend, amp.policy, states)
    load_histories(amp.backend, amp.policy, histories)
    amp.averages.load(averages)


def read_session(amp: Session, raw: Mapping[str, Any], restart_scale: bool) -> ScaleState:
    """Check ``raw`` wholly and return the state that ``amp`` goes on from; see ``Amp.load_state_dict``.

    Warns of what this session does otherwise than the one that saved; changes nothing.
    """
    return _state_here(amp, read_saved(raw), restart_scale)


def _state_here(amp: Session, saved: SavedState, restart_scale: bool) -> ScaleState:
    mine = amp.loss_scale_settings
    off = saved.state is None or (saved.loss_scale is not None and not saved.loss_scale.enabled)
    warn = amp.backend.spec.warn
    if mine.enabled and off and not restart_scale:
        raise CheckpointError(
            f"this state ({saved.source}) was saved with loss scaling off, but the session scales by {mine}: "
            "pass restart_scale=True to start from the initial scale, or loss_scale='none' to the session"
        )
    state = saved.state or mine.initial_state()
    if off or not mine.enabled:
        state = replace(mine.initial_state(), applied_steps=state.applied_steps, skipped_steps=state.skipped_steps)
    else:
        state = _with_hysteresis(_within_bounds(state, mine, warn), mine, saved, warn)
        _compare_settings(mine, saved, warn)
    policy = str(amp.policy.replace(loss_scale=None))
    if saved.policy is not None and saved.policy != policy:
        warn(f"the state was saved under policy {saved.policy!r}; this session trains under {policy!r}", StateWarning)
    return state


def _within_bounds(state: ScaleState, mine: LossScale, warn: Any) -> ScaleState:
    bounded = mine.within(state)
    if bounded.scale != state.scale:
        low, high = mine.scale_bounds
        warn(f"the saved scale {state.scale:g} lies outside [{low:g}, {high:g}]; using {bounded.scale:g}", StateWarning)
    return bounded


def _with_hysteresis(state: ScaleState, mine: LossScale, saved: SavedState, warn: Any) -> ScaleState:
    """Return the state with the overflows that count towards hysteresis under this session's settings."""
    left, bad, spent = saved.hysteresis_left, state.bad_steps, state.hysteresis_steps
    if left is not None:
        spent = max(mine.hysteresis - left, 0)
        bad = 0 if state.good_steps else spent
        if left > mine.hysteresis and "hysteresis" not in (saved.held or ()):
            warn(
                f"{saved.source} had {left} overflows left before the scale backs off, and this session backs off "
                f"after {mine.hysteresis}: give DynamicLossScale the hysteresis of that run",
                StateWarning,
            )
    if not mine.keeps_hysteresis:
        return replace(state, bad_steps=bad, hysteresis_steps=0)
    return replace(state, hysteresis_steps=min(max(spent, state.bad_steps), mine.hysteresis))


def _compare_settings(mine: LossScale, saved: SavedState, warn: Any) -> None:
    theirs = saved.loss_scale
    if theirs is None or theirs == mine:
        return
    if theirs.kind != mine.kind:
        warn(f"the state was saved with loss scale {theirs}; this session uses {mine}", StateWarning)
        return
    for field in fields(mine):
        old, new = getattr(theirs, field.name), getattr(mine, field.name)
        if old != new and _has_effect(field.name, mine) and (saved.held is None or field.name in saved.held):
            warn(f"loss scale {field.name} was {old!r} when saved; this session's {new!r} is used", StateWarning)


def _has_effect(setting: str, mine: LossScale) -> bool:
    if setting == "hysteresis_reset":
        return mine.hysteresis > 1
    return setting != "initial_scale"  # where a run starts has no meaning once it goes on


def read_saved(raw: Mapping[str, Any]) -> SavedState:
    """Read a state of ours or of a native scaler.

    Raises:
        CheckpointError: none of them, truncated, or from a newer version.
    """
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"a saved state must be a mapping, got {type(raw).__name__}")
    if "schema" not in raw:
        native = read_foreign(raw)
        left = native.hysteresis_left
        return SavedState(native.state, native.loss_scale, None, native.source, native.held, left)
    if raw["schema"].__class__ is not str or raw["schema"] != SCHEMA:
        raise CheckpointError(f"this state has schema {shortened(raw['schema'])}, not {SCHEMA!r}")
    _check_version(raw.get("version"))
    missing = [key for key in ("policy", "loss_scale", "state") if key not in raw]
    if missing:
        raise CheckpointError(f"this state is truncated: {', '.join(missing)} missing")
    try:
        settings = parse_loss_scale(raw["loss_scale"])
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise CheckpointError(f"this state's loss_scale cannot be read: {error}") from error
    for key in ("policy", "backend"):
        if not isinstance(raw.get(key, ""), str):
            raise CheckpointError(f"this state's {key} must be text, got {shortened(raw[key])}")
    try:
        Policy.parse(raw["policy"])
    except ValueError as error:
        raise CheckpointError(f"this state's policy cannot be read: {error}") from error
    return SavedState(_read_state(raw["state"]), settings, raw["policy"], f"unifiedamp, {raw.get('backend')}")


def _check_version(version: Any) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError(f"this state has no usable version number: {shortened(version)}")
    if version > VERSION:
        raise CheckpointError(
            f"this state has version {shortened(version)}; this unifiedamp reads up to {VERSION}: update it"
        )


def _read_state(raw: Any) -> ScaleState:
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"this state's 'state' must be a mapping, got {type(raw).__name__}")
    values: dict[str, Any] = {}
    for field in fields(ScaleState):
        if field.name not in raw and field.name == "hysteresis_steps":
            continue
        if field.name not in raw:
            raise CheckpointError(f"this state is truncated: state.{field.name} missing")
        read = checked_scale if field.name == "scale" else checked_count
        values[field.name] = read(raw[field.name], f"state.{field.name}")
    if values["good_steps"] and values["bad_steps"]:
        raise CheckpointError(
            "state.good_steps and state.bad_steps are runs that end each other: one of them must be 0"
        )
    return ScaleState(**values)


def to_grad_scaler_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``torch.amp.GradScaler.load_state_dict`` takes, from what ``Amp.state_dict`` returned.

    The scale, the count of finite steps and the settings that torch has are carried over; bounds, hysteresis and counts
    of steps have no place in torch's layout. Of a session without a loss scale this is ``{}``, which only a disabled
    ``GradScaler`` loads. A static scale is one that never changes: both factors are 1.

    Args:
        state: a state of any backend's session, or any native layout that ``Amp.load_state_dict`` reads.

    Raises:
        CheckpointError: it is no such state.

    Example:
        scaler = torch.amp.GradScaler("cuda")
        scaler.load_state_dict(to_grad_scaler_state(amp.state_dict()))
    """
    saved = read_saved(state)
    if saved.state is None or (saved.loss_scale is not None and not saved.loss_scale.enabled):
        return {}
    settings = saved.loss_scale or DynamicLossScale()
    dynamic = isinstance(settings, DynamicLossScale)
    return {
        "scale": float(saved.state.scale),
        "growth_factor": settings.growth_factor if dynamic else 1.0,
        "backoff_factor": settings.backoff_factor if dynamic else 1.0,
        "growth_interval": settings.growth_interval if dynamic else 2**31 - 1,
        "_growth_tracker": saved.state.good_steps,
    }
