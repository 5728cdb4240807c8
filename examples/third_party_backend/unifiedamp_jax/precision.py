"""Where the policy applies: creation, autocast regions, inference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from unifiedamp.backend import Policy, Precision

from . import autocast, layers


class JaxPrecision(Precision):
    """Regions under one session's policy.

    Args:
        policy: the session's.
        device: where models are created.
    """

    def __init__(self, policy: Policy, device: jax.Device) -> None:
        self._policy, self._device = policy, device

    def scope(self) -> AbstractContextManager[Any]:
        return jax.default_device(self._device)

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        if policy is not None:
            layers.check_policy(policy)
        return autocast.region(enabled, policy or self._policy)

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return autocast.inference(models, self._policy)
