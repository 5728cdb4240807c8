"""Where new modules are created, and moving modules and optimizer state to the session's device."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def creation_scope(device: torch.device, on_device: bool = True) -> AbstractContextManager[Any]:
    """Return a context that creates tensors and modules on ``device`` by default; with ``on_device`` False, a no-op."""
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
    """Return whether a model has two-dimensional convolutions."""
    return any(isinstance(module, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for module in model.modules())


def to_channels_last(model: torch.nn.Module) -> bool:
    """Convert a convolutional model's weights to channels last, in place; return whether it was done.

    Convolutions then return that layout whatever the layout of their input, so batches need not be converted.
    """
    if not has_images(model):
        return False
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return True


def match_state(optimizer: torch.optim.Optimizer) -> None:
    """Convert an optimizer's state to the device, dtype and layout of its parameters."""
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())
        match_layouts(optimizer)


def match_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Convert state tensors to the layout of their parameters, which fused kernels require."""
    for param, state in optimizer.state.items():
        for name, value in state.items():
            same = isinstance(value, torch.Tensor) and value.shape == param.shape
            if same and value.stride() != param.stride():
                state[name] = torch.empty_like(param, dtype=value.dtype).copy_(value)


def steps_to_device(optimizer: torch.optim.Optimizer) -> None:
    """Move step counters to the device of their parameters, where fused and compiled steps read them."""
    for param, state in optimizer.state.items():
        step = state.get("step")
        if isinstance(step, torch.Tensor) and step.device != param.device:
            state["step"] = step.to(param.device)


def steps_to_cpu(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> None:
    """Move step counters of parameters to the CPU, where a group that is neither fused nor capturable reads them."""
    for param in params:
        state = optimizer.state.get(param, {})
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].cpu()
