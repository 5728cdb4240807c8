"""Where new modules are made, and moving those that were made elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def creation_scope(device: torch.device, on_device: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which tensors and modules are made on ``device`` by default, if that is wanted."""
    if not on_device:
        return nullcontext()
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


def has_images(model: torch.nn.Module) -> bool:
    """Tell whether a model convolves in two dimensions."""
    return any(isinstance(module, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for module in model.modules())


def to_channels_last(model: torch.nn.Module) -> bool:
    """Lay out a convolutional model's weights as Tensor Cores want them, in place; return whether it was done.

    Convolutions then answer in that layout whatever the layout of their input, so batches need not be changed.
    """
    if not has_images(model):
        return False
    model.to(memory_format=torch.channels_last)
    return True


def follow(optimizer: torch.optim.Optimizer) -> None:
    """Bring an optimizer's state to the device, dtype and layout of its parameters."""
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())
        align(optimizer)


def align(optimizer: torch.optim.Optimizer) -> None:
    """Give state tensors the layout of their parameters, which fused kernels ask for."""
    for param, state in optimizer.state.items():
        for name, value in state.items():
            same = isinstance(value, torch.Tensor) and value.shape == param.shape
            if same and value.stride() != param.stride():
                state[name] = torch.empty_like(param).copy_(value)
