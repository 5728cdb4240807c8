"""Where new modules are made, and moving those that were made elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def creation_scope(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which tensors and modules are made on ``device`` by default."""
    return nullcontext() if torch.get_default_device() == device else device


def move(model: torch.nn.Module, device: torch.device) -> bool:
    """Move a model to ``device`` in place, so that optimizers keep their parameters; return whether it moved.

    A model that is spread over several devices, or has no storage yet, is left where it is.
    """
    tensors = [*model.parameters(), *model.buffers()]
    found = {tensor.device for tensor in tensors}
    if len(found) != 1 or device in found or found == {torch.device("meta")}:
        return False
    model.to(device)
    return True


def follow(optimizer: torch.optim.Optimizer) -> None:
    """Bring an optimizer's state to the device and dtype of its parameters."""
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())
