"""The role that keeps amax histories: what a session's state holds of delayed scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import AmaxHistory

from .float8_scales import DelayedScaling


class TensorFlowAmaxHistory(AmaxHistory):
    """Histories in variables of the session, outside the models and their checkpoints.

    Args:
        scaling: the session's.
    """

    means = "variables, updated at the end of each iteration, in traces and by XLA too"

    def __init__(self, scaling: DelayedScaling) -> None:
        self._scaling = scaling

    def read(self) -> dict[str, Any]:
        return self._scaling.read()

    def write(self, histories: Mapping[str, Any]) -> None:
        self._scaling.write(histories)
