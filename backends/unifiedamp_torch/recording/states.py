"""Weights and optimizer states at the end of a recorded step: how their values are distributed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import errors, recording

from ..device.kinds import traits
from ..distributed.wrapped import sharded
from ..training.gradients import parameters
from ..training.prepared import PreparedObjects
from .reductions import count

AT_ONCE = 2**26
"""Values of a tensor that are counted at a time: what counting takes in memory."""


def kept_weights(prepared: PreparedObjects) -> dict[int, torch.Tensor]:
    """Return copies of the trained weights, by the id of the parameter or its master."""
    return {id(param): param.detach().clone() for optimizer in prepared.optimizers for param in parameters(optimizer)}


def states(prepared: PreparedObjects, device: torch.device, kept: Mapping[int, torch.Tensor]) -> recording.States:
    """Return what each parameter's weight, its update and its optimizer states hold; waits for the device once.

    Args:
        prepared: the session's.
        device: the session's.
        kept: see :func:`kept_weights`.

    Raises:
        UnsupportedError: the models are sharded.
    """
    if sharded(prepared.models):
        raise errors.UnsupportedError(
            "amp.record(states=True): fully_shard divides weights and optimizer states between ranks; record a run of "
            "DistributedDataParallel or of one process"
        )
    rows, counted = [], []
    for optimizer in prepared.optimizers:
        for param, name, tensor in _tensors(prepared, optimizer, kept):
            rows.append((param, name, str(tensor.dtype).removeprefix("torch.")))
            counted.append(_counted(tensor, device))
    if not rows:
        return {}
    found: dict[str, dict[str, recording.StateCounts]] = {}
    for (param, name, dtype), (norm, *counts) in zip(rows, torch.stack(counted).tolist(), strict=True):
        found.setdefault(param, {})[name] = recording.StateCounts(list(map(int, counts)), norm, dtype)
    return found


def _tensors(
    prepared: PreparedObjects, optimizer: torch.optim.Optimizer, kept: Mapping[int, torch.Tensor]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield parameter, name and values of each weight and state; counts of steps have another shape."""
    for name, param in zip(prepared.param_names(optimizer), parameters(optimizer), strict=True):
        values: dict[str, Any] = {recording.WEIGHT: param, **optimizer.state.get(param, {})}
        if id(param) in kept:
            values[recording.UPDATE] = param.detach().float() - kept[id(param)].float()
        for state, tensor in values.items():
            if isinstance(tensor, torch.Tensor) and tensor.shape == param.shape and tensor.numel():
                yield name, state, tensor


def _counted(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the norm and the counts as one vector on the session's device."""
    with torch.no_grad():
        values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        wide = traits(device).wide_dtype
        parts: Sequence[torch.Tensor] = values.reshape(-1).split(AT_ONCE)  # type: ignore[no-untyped-call]  # torch's
        counts = [scaled for part in parts for scaled, _ in count([part], None)]
        total = torch.stack([each.to(device, wide) for each in counts]).sum(0)
        norm = torch.stack([torch.linalg.vector_norm(part.float()) for part in parts]).to(device, wide)
        return torch.cat([torch.linalg.vector_norm(norm).reshape(1), total])
