"""Batches in, results out, without a copy where that can be had."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_native(array: Any, device: torch.device) -> torch.Tensor:
    """Return ``array`` as a tensor on ``device``; memory is shared on the CPU where torch can write to it."""
    if isinstance(array, torch.Tensor):
        return array.to(device, non_blocking=True)
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        return torch.from_dlpack(array).to(device, non_blocking=True)
    plain = np.asarray(array)
    native = plain.astype(plain.dtype.newbyteorder("="), copy=False)
    if not native.flags.writeable or any(stride < 0 for stride in native.strides):
        native = native.copy()
    return torch.from_numpy(native).to(device, non_blocking=True)


def to_numpy(tensor: Any) -> Any:
    """Return ``tensor`` as a numpy array, sharing memory on the CPU; bfloat16, which numpy lacks, as float32."""
    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return (plain.float() if plain.dtype is torch.bfloat16 else plain).cpu().numpy()
