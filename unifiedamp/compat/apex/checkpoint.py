"""``state_dict`` and ``load_state_dict`` in Apex's layout.

::

    {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 3}, "loss_scaler1": …}
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from unifiedamp.errors import CheckpointError, StateWarning

from .state import amp_state


def state_dict(destination: Any = None) -> Any:
    """Return the scales and their counters, plain numbers, one entry per loss id.

    Args:
        destination: a mapping to write into; None makes one.

    Raises:
        StepOrderError: ``initialize`` was not called.
    """
    amp_state.options("state_dict")
    saved = OrderedDict() if destination is None else destination
    for scaler in amp_state.loss_scalers:
        state = scaler.session.state_dict()["state"]
        saved[f"loss_scaler{scaler.loss_id}"] = {"loss_scale": state["scale"], "unskipped": state["good_steps"]}
    return saved


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Go on from a state that this module or Apex saved.

    A state of more or fewer losses than ``num_losses`` loads as far as it goes, with a ``StateWarning``.

    Raises:
        StepOrderError: ``initialize`` was not called.
        CheckpointError: not such a state; nothing is changed then.
    """
    amp_state.options("load_state_dict")
    entries = _entries(state_dict)
    scalers = amp_state.loss_scalers
    if scalers and len(entries) != len(scalers):
        warnings.warn(
            f"amp.load_state_dict: the state holds {len(entries)} loss scalers and num_losses is {len(scalers)}; "
            f"the first {min(len(entries), len(scalers))} are loaded",
            StateWarning,
            stacklevel=2,
        )
    before = [scaler.session.state_dict() for scaler in scalers]
    try:
        for scaler, entry in zip(scalers, entries, strict=False):
            scaler.session.load_state_dict({"loss_scaler0": entry})
    except CheckpointError:
        for scaler, state in zip(scalers, before, strict=True):
            scaler.session.load_state_dict(state)
        raise


def _entries(state: object) -> list[Any]:
    if not isinstance(state, Mapping):
        raise CheckpointError(f"amp.load_state_dict takes what amp.state_dict() returned, got {type(state).__name__}")
    strange = [str(key) for key in state if not str(key).startswith("loss_scaler")]
    if strange:
        raise CheckpointError(
            f"amp.load_state_dict: unexpected keys {strange[:5]}; Apex's state has loss_scaler0, loss_scaler1, … only "
            "(in a whole checkpoint it is often checkpoint['amp'])"
        )
    return list(state.values())
