"""The role that applies the policy: creation scope, autocast regions, inference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from unifiedamp.backend import Policy, Precision

from ..device.placement import creation_scope
from .autocast import Inference, Region
from .regions import Regions


class TorchPrecision(Precision):
    """The policy as ``torch.autocast``.

    Args:
        regions: the session's.
        device: the session's.
        scope_device: ``scope()`` creates tensors on the device.
    """

    def __init__(self, regions: Regions, device: torch.device, scope_device: bool) -> None:
        self._regions = regions
        self._device, self._scope_device = device, scope_device

    def scope(self) -> AbstractContextManager[None]:
        return creation_scope(self._device, self._scope_device)

    def autocast(self, enabled: bool, policy: Policy | None) -> Region:
        return self._regions.get(enabled, policy)

    def inference(self, models: Sequence[torch.nn.Module]) -> Inference:
        return Inference(self._regions.uncached, models)
