"""Batches in, results out, without a copy where possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unifiedamp.backend import errors, host_array


def to_native(array: Any, device: torch.device, dtype: str | None = None) -> torch.Tensor:
    """Return ``array`` as a tensor on ``device``; memory is shared on the CPU where torch can write to it.

    Args:
        array: see ``Device.to_native``.
        device: the tensor's.
        dtype: its dtype; None converts floating-point arrays of more bits to float32, except torch's own.

    Raises:
        WrongObjectError: torch has no tensors of the array's dtype (text, Python objects).
    """
    if isinstance(array, torch.Tensor):
        return array.to(device, _wanted(dtype, array.dtype), non_blocking=True)
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    else:
        tensor = _from_numpy(host_array(array), dtype)
    kept = torch.float32 if tensor.dtype is torch.float64 else tensor.dtype
    return tensor.to(device, _wanted(dtype, kept), non_blocking=True)


def _wanted(dtype: str | None, kept: torch.dtype) -> torch.dtype:
    return kept if dtype is None else getattr(torch, dtype)


def _from_numpy(array: Any, dtype: str | None) -> torch.Tensor:
    if array.dtype.name == "bfloat16":  # an extension of numpy (ml_dtypes), which torch does not read
        return torch.from_numpy(_plain(array.view(np.int16))).view(torch.bfloat16)
    if array.dtype.kind == "f" and array.dtype.itemsize > (8 if dtype == "float64" else 4):
        array = array.astype(np.float64 if dtype == "float64" else np.float32)
    try:
        return torch.from_numpy(_plain(array))
    except TypeError:
        raise errors.WrongObjectError(
            f"amp.to_native: torch has no tensors of numpy's dtype {str(array.dtype)!r}; make it an array of numbers"
        ) from None


def _plain(array: Any) -> Any:
    """Return ``array`` in the processor's byte order, writable, with positive strides."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return native.copy() if not native.flags.writeable or any(stride < 0 for stride in native.strides) else native


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is sharded over processes, all of which must call this, as a whole; others unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def like(tensor: Any, values: torch.Tensor) -> torch.Tensor:
    """Return ``values``, which every process has, sharded as ``tensor`` is."""
    if not hasattr(tensor, "full_tensor"):
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements)


def to_numpy(tensor: Any) -> Any:
    """Return ``tensor`` as a numpy array, sharing memory on the CPU; bfloat16, which numpy lacks, as float32, and what
    is sharded over processes as a whole.
    """
    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    plain = whole(tensor.detach()).resolve_conj().resolve_neg()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return (plain.float() if plain.dtype is torch.bfloat16 else plain).cpu().numpy()
