"""What ``unifiedamp.compat`` and torch's own tools need beyond the roles."""

from __future__ import annotations

import torch


class TorchInterop:
    """Native objects of the session.

    Attributes:
        scaler: the native scaler; None without loss scaling.
    """

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self.scaler = scaler
