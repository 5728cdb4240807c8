"""The role that keeps amax histories: what a session's state holds of delayed scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import AmaxHistory

from .float8_scales import DelayedScaling


class MXNetAmaxHistory(AmaxHistory):
    """Histories in numpy arrays on the host.

    Args:
        scaling: the session's.
    """

    means = "numpy arrays, updated at the end of each iteration, which waits for its backward passes"

    def __init__(self, scaling: DelayedScaling) -> None:
        self._scaling = scaling

    def read(self) -> dict[str, Any]:
        return self._scaling.read()

    def write(self, histories: Mapping[str, Any]) -> None:
        self._scaling.write(histories)
