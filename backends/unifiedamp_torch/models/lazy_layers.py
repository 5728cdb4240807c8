"""Refuses lazy layers (``torch.nn.LazyLinear``) that have seen no batch, where values or shapes are needed."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from unifiedamp.backend import errors

from ..layer_paths import plain_name


def refuse_lazy(model: torch.nn.Module, call: str) -> None:
    """Refuse a model with parameters or buffers that have no shape yet.

    Args:
        model: the model.
        call: what needs them, for the message.

    Raises:
        PrepareError: naming the first ones.
    """
    names = [
        plain_name(name) for name, tensor in [*model.named_parameters(), *model.named_buffers()] if is_lazy(tensor)
    ]
    if names:
        raise errors.PrepareError(
            f"{call}: {errors.first_names(names)} of {type(model).__name__} belong to lazy layers that have seen no "
            "batch, and have no shape yet; call the model once on a batch before amp.prepare"
        )
