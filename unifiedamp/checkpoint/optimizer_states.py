"""What a session's state holds of moments in fewer bits: their dtype, the seed, and counts of rounded updates.

The moments themselves are in the native state of the optimizer, and here where ``Amp.state_dict(moments=True)`` asks
for them, by names and in values that each framework has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Backend
from ..errors import CheckpointError, StateWarning, UnsupportedError
from ..loss_scale.saved_values import checked_count, shortened
from ..policy import Policy
from ..policy.updates import LARGEST_SEED, STATE_DTYPES
from .averages import from_text, to_text


@dataclass(frozen=True)
class SavedStates:
    """The optimizer states of a saved session.

    Attributes:
        dtype: ``Policy.state_dtype``.
        seed: ``Policy.update_seed``.
        steps: updates that were rounded, by optimizer.
        applied: steps by the optimizers' own count; None without moments.
        moments: of each optimizer, "parameter/moment" → float32 array; None where the state has none.
    """

    dtype: str | None
    seed: int
    steps: list[int]
    applied: list[int] | None = None
    moments: list[dict[str, Any]] | None = None


def dump_states(backend: Backend, policy: Policy, moments: bool) -> dict[str, Any]:
    """Return what a state holds, as plain JSON values; ``moments``: also them.

    Raises:
        UnsupportedError: moments are asked for that are not known.
    """
    role, kept = backend.optimizer_states, {}
    if moments:
        if policy.state_dtype is None and policy.update is None:
            raise UnsupportedError(
                f"amp.state_dict(moments=True): under policy {str(policy)!r} the optimizer keeps its moments itself; "
                "save its own state, or use a policy with update or state_dtype"
            )
        arrays = [{name: to_text(array) for name, array in each.items()} for each in role.read()]
        kept = {"applied": role.applied(), "moments": arrays}
    return {"dtype": policy.state_dtype, "seed": policy.update_seed, "steps": role.steps(), **kept}


def read_states(raw: Any) -> SavedStates | None:
    """Return the optimizer states of a saved session; None where it has none.

    Raises:
        CheckpointError: they cannot be read.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"this state's 'states' must be a mapping, got {type(raw).__name__}")
    missing = [key for key in ("dtype", "seed", "steps") if key not in raw]
    if missing:
        raise CheckpointError(f"this state is truncated: states.{missing[0]} missing")
    dtype, steps, seed = raw["dtype"], raw["steps"], checked_count(raw["seed"], "states.seed")
    if dtype not in (None, *STATE_DTYPES) or seed > LARGEST_SEED:
        raise CheckpointError(
            f"this state's states.dtype must be one of {', '.join(STATE_DTYPES)} and its seed at most {LARGEST_SEED}, "
            f"got {shortened(dtype)} and {shortened(seed)}"
        )
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise CheckpointError(f"this state's states.steps must be a list, got {type(steps).__name__}")
    counts = [checked_count(each, "states.steps") for each in steps]
    if "moments" not in raw:
        return SavedStates(dtype, seed, counts)
    try:
        applied = [checked_count(each, "states.applied") for each in raw["applied"]]
        moments = [
            {str(name): from_text(text, f"states.moments[{name!r}]") for name, text in each.items()}
            for each in raw["moments"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"this state's states.moments cannot be read: {error}") from error
    return SavedStates(dtype, seed, counts, applied, moments)


def check_states(backend: Backend, policy: Policy, saved: SavedStates | None) -> None:
    """Refuse counts of other optimizers than the prepared ones.

    Raises:
        CheckpointError: their number differs.
    """
    if saved is None or not _has_states(policy):
        return
    mine = len(backend.optimizer_states.steps())
    if not len(saved.steps) == len(saved.moments or saved.steps) == len(saved.applied or saved.steps) == mine:
        raise CheckpointError(
            f"this state has the steps of {len(saved.steps)} optimizers under state_dtype={saved.dtype!r}, and {mine} "
            "are prepared here: call amp.load_state_dict after amp.prepare, with the same optimizers"
        )


def load_states(backend: Backend, policy: Policy, saved: SavedStates | None) -> None:
    """Go on from counts that :func:`check_states` accepted."""
    if saved is None or not _has_states(policy):
        return
    if saved.seed != policy.update_seed and policy.update is None:
        backend.spec.warn(
            f"update_seed was {saved.seed} when saved; this session's {policy.update_seed} is used", StateWarning
        )
    backend.optimizer_states.set_steps(saved.steps)
    if saved.moments is not None and saved.applied is not None:
        backend.optimizer_states.write(saved.moments, saved.applied)


def _has_states(policy: Policy) -> bool:
    return policy.state_dtype is not None or policy.update is not None
