"""The role that keeps amax histories: what a session's state holds of delayed scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import AmaxHistory

from .float8_state import Float8State


class TorchAmaxHistory(AmaxHistory):
    """Histories on the session's device, outside the models' ``state_dict``.

    Args:
        state: what the session's float8 layers keep.
    """

    means = "device tensors, updated at the end of each iteration without a device wait"

    def __init__(self, state: Float8State) -> None:
        self._state = state

    def read(self) -> dict[str, Any]:
        return {} if self._state.scaling is None else self._state.scaling.read()

    def write(self, histories: Mapping[str, Any]) -> None:
        if self._state.scaling is not None:
            self._state.scaling.write(histories)
