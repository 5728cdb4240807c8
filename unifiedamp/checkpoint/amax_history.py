"""What a session's state holds of delayed float8 scaling: the amax histories of its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..backend import Backend
from ..errors import CheckpointError, first_names
from ..loss_scale.saved_values import shortened
from ..policy import Policy
from .averages import from_text, to_text

ROWS = 3
"""Of inputs, weight and gradients."""


def keeps_history(policy: Policy) -> bool:
    """Return whether sessions of a policy have amax histories."""
    return policy.compute_dtype == "float8" and policy.recipe == "delayed"


def dump_histories(backend: Backend) -> dict[str, Any]:
    """Return the histories as plain JSON values."""
    return {name: to_text(array) for name, array in backend.amax_history.read().items()}


def dump_sizes(backend: Backend) -> dict[str, Any]:
    """Return layer → its inputs and outputs, as plain JSON values."""
    return {name: list(sizes) for name, sizes in backend.amax_history.sizes().items()}


def read_sizes(raw: Any) -> dict[str, tuple[int, int]]:
    """Return layer → its inputs and outputs in the session that saved; empty for states that do not say.

    Raises:
        CheckpointError: they cannot be read.
    """
    if raw is None:
        return {}
    rows = raw.items() if isinstance(raw, Mapping) else [("", raw)]
    for name, sizes in rows:
        if not isinstance(sizes, list) or [type(size) for size in sizes] != [int, int] or min(sizes) < 1:
            raise CheckpointError(
                "this state's 'amax_history_sizes' must be a mapping from layers to their inputs and outputs, got "
                f"{shortened(sizes)} for {name!r}"
            )
    return {str(name): (sizes[0], sizes[1]) for name, sizes in rows}


def read_histories(raw: Any) -> dict[str, Any] | None:
    """Return layer → history of a state; None where it has none.

    Raises:
        CheckpointError: they cannot be read.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"this state's 'amax_history' must be a mapping, got {type(raw).__name__}")
    found = {str(name): from_text(text, f"amax_history[{name!r}]") for name, text in raw.items()}
    for name, array in found.items():
        fits = array.ndim == 2 and array.shape[0] == ROWS and array.dtype == "float32"
        if not fits or not ((array >= 0) & (array < math.inf)).all():
            raise CheckpointError(
                f"this state's amax_history[{name!r}] must be float32 numbers of shape (3, iterations), finite, not "
                f"below 0, got {shortened(array.dtype)} of shape {array.shape}"
            )
    return found


def check_histories(
    backend: Backend, policy: Policy, saved: Mapping[str, Any] | None, sizes: Mapping[str, tuple[int, int]]
) -> None:
    """Refuse histories of other layers than the prepared ones.

    Args:
        backend, policy: the session's.
        saved, sizes: what was read of a state.

    Raises:
        CheckpointError: naming the layers.
    """
    if saved is None or not keeps_history(policy):
        return
    mine = backend.amax_history.read()
    other, missing = [name for name in saved if name not in mine], [name for name in mine if name not in saved]
    said = [f"it has {first_names(other)}, which is no float8 layer here"] if other else []
    said += [f"it lacks {first_names(missing)}"] if missing else []
    here = backend.amax_history.sizes()
    said += [
        f"{name!r} has {_sizes_text(sizes[name])} in the state, and {_sizes_text(here[name])} here"
        for name in saved
        if name in sizes and name in here and tuple(sizes[name]) != tuple(here[name])
    ][:1]
    if not said:
        return
    raise CheckpointError(
        f"this state's amax histories belong to other layers: {'; '.join(said)}. Call amp.load_state_dict after "
        "amp.prepare, with the same models; nothing was loaded"
    )


def load_histories(backend: Backend, policy: Policy, saved: Mapping[str, Any] | None) -> None:
    """Go on from histories that :func:`check_histories` accepted; without any, the next iteration begins them."""
    if keeps_history(policy):
        backend.amax_history.write(saved or {})


def _sizes_text(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]} inputs and {sizes[1]} outputs"
