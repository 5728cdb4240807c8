"""What ``unifiedamp.compat``, ``unifiedamp.integrations`` and torch's own tools need beyond the roles."""

from __future__ import annotations

import torch

from .training.host_loops import HostLoops


class TorchInterop:
    """Native objects of the session.

    Attributes:
        scaler: the native scaler; None without loss scaling.
        host_loops: for training loops that others own.
    """

    def __init__(self, scaler: torch.amp.GradScaler | None, host_loops: HostLoops) -> None:
        self.scaler = scaler
        self.host_loops = host_loops
