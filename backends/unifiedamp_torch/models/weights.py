"""A module's true weights as float32 arrays (complex ones as complex64), by the names of its ``state_dict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..device.arrays import like, whole
from ..training.master_weights import Masters
from ..training.prepare import plain_name


def read(model: torch.nn.Module, masters: Masters) -> dict[str, Any]:
    """Return name → array; of what is sharded over processes (all of which must call this), the whole."""
    return {name: whole(masters.read(tensor)).to("cpu", copy=True).numpy() for name, tensor in _tensors(model)}


def write(model: torch.nn.Module, masters: Masters, weights: Mapping[str, Any]) -> None:
    """Set parameters, masters and buffers."""
    for name, tensor in _tensors(model):
        masters.write(tensor, like(tensor, torch.from_numpy(weights[name])))


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
            yield plain_name(name), tensor
