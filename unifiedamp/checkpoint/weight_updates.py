"""What a session's state holds of its updates of bfloat16 parameters: counts of steps, seed, compensations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Backend
from ..errors import CheckpointError, StateWarning, first_names
from ..loss_scale.saved_values import checked_count, shortened
from ..policy import Policy
from ..policy.updates import LARGEST_SEED, UPDATES
from .averages import from_text, to_text


@dataclass(frozen=True)
class SavedUpdate:
    """The updates of a saved state.

    Attributes:
        kind: ``Policy.update``.
        seed: ``Policy.update_seed``.
        steps: updates that were rounded, by optimizer.
        compensation: name of a parameter → float32 array, whose values bfloat16 holds.
    """

    kind: str
    seed: int
    steps: list[int]
    compensation: dict[str, Any]


def dump_update(backend: Backend, policy: Policy) -> dict[str, Any]:
    """Return what a state holds, as plain JSON values."""
    rests = backend.weight_updates.read().items() if policy.update == "kahan" else ()
    return {
        "kind": policy.update,
        "seed": policy.update_seed,
        "steps": backend.weight_updates.steps(),
        "compensation": {name: to_text(array) for name, array in rests},
    }


def read_update(raw: Any) -> SavedUpdate | None:
    """Return the updates of a state; None where it has none.

    Raises:
        CheckpointError: they cannot be read.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"this state's 'update' must be a mapping, got {type(raw).__name__}")
    missing = [key for key in ("kind", "seed", "steps", "compensation") if key not in raw]
    if missing:
        raise CheckpointError(f"this state is truncated: update.{missing[0]} missing")
    kind, steps, rests = raw["kind"], raw["steps"], raw["compensation"]
    if kind not in UPDATES:
        raise CheckpointError(f"this state's update.kind must be one of {', '.join(UPDATES)}, got {shortened(kind)}")
    if not isinstance(steps, Sequence) or isinstance(steps, str) or not isinstance(rests, Mapping):
        raise CheckpointError("this state's update needs a list of steps and a mapping of compensations")
    seed = checked_count(raw["seed"], "update.seed")
    if seed > LARGEST_SEED:
        raise CheckpointError(f"this state's update.seed must be at most {LARGEST_SEED}, got {seed}")
    counts = [checked_count(each, "update.steps") for each in steps]
    arrays = {str(name): from_text(text, f"update.compensation[{name!r}]") for name, text in rests.items()}
    return SavedUpdate(kind, seed, counts, arrays)


def check_update(backend: Backend, policy: Policy, saved: SavedUpdate | None) -> None:
    """Refuse saved updates that do not fit the prepared objects.

    Raises:
        CheckpointError: of names, shapes, or optimizers.
    """
    if saved is None or policy.update is None:
        return
    mine = len(backend.weight_updates.steps())
    if len(saved.steps) != mine:
        raise CheckpointError(
            f"this state has the steps of {len(saved.steps)} optimizers under update={saved.kind!r}, and {mine} are "
            "prepared here: call amp.load_state_dict after amp.prepare, with the same optimizers"
        )
    shapes = backend.weight_updates.shapes() if policy.update == "kahan" else {}
    unknown = [name for name in saved.compensation if name not in shapes] if shapes else []
    if unknown:
        raise CheckpointError(
            f"this state has compensations of parameters that are not bfloat16 parameters here "
            f"({first_names(unknown)}); nothing was loaded"
        )
    for name, array in saved.compensation.items() if shapes else ():
        if array.shape != shapes[name] or array.dtype != "float32":
            raise CheckpointError(
                f"this state's compensation of {name!r} has shape {array.shape} and dtype {array.dtype}, the parameter "
                f"wants float32 of shape {shapes[name]}; nothing was loaded"
            )


def load_update(backend: Backend, policy: Policy, saved: SavedUpdate | None) -> None:
    """Go on from saved updates that :func:`check_update` accepted; of another kind, from their counts alone."""
    if saved is None or policy.update is None:
        return
    if saved.seed != policy.update_seed:
        backend.spec.warn(
            f"update_seed was {saved.seed} when saved; this session's {policy.update_seed} is used", StateWarning
        )
    same = saved.kind == policy.update
    backend.weight_updates.write(saved.compensation if same else backend.weight_updates.read(), saved.steps)
