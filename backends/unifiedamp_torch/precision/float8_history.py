"""The role that keeps amax histories: what a session's state holds of delayed scaling."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import AmaxHistory

from ..distributed.agreement import Agreement
from .float8_state import Float8State


class TorchAmaxHistory(AmaxHistory):
    """Histories on the session's device, outside the models' ``state_dict``.

    Args:
        state: what the session's float8 layers keep.
        agreement: compares what the ranks loaded.
    """

    means = "device tensors, updated at the end of each iteration without a device wait"

    def __init__(self, state: Float8State, agreement: Agreement) -> None:
        self._state, self._agreement = state, agreement

    def read(self) -> dict[str, Any]:
        return {} if self._state.scaling is None else self._state.scaling.read()

    def write(self, histories: Mapping[str, Any]) -> None:
        if self._state.scaling is not None:
            self._state.scaling.write(histories)
            self._agreement.histories = _described(histories)

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {} if self._state.scaling is None else dict(self._state.scaling.sizes)


def _described(histories: Mapping[str, Any]) -> str:
    """Return a few words that differ for other histories."""
    if not histories:
        return "nothing"
    digest = 0
    for name in sorted(histories):
        digest = zlib.crc32(histories[name].tobytes(), zlib.crc32(name.encode(), digest))
    return f"{len(histories)} layers (checksum {digest:08x})"
