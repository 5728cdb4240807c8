"""Clipping the global norm of one optimizer's gradients, over all shards."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from ..device.kinds import traits
from ..distributed.ranks import reduce_over
from ..distributed.wrapped import joined, mesh_of
from .gradients import Optimizer, by_kind, is_sharded, local_part, parameters, real_values, refuse_sparse, sum_partial

Layout = tuple[Any, Any]
"""The device mesh and placements of a DTensor."""


def clip_norm(optimizer: Optimizer, max_norm: float, reads_without_sync: bool) -> torch.Tensor:
    """Clip the global 2-norm in place; return the norm before, a scalar on the device.

    Args:
        optimizer: whose gradients.
        max_norm: the largest norm.
        reads_without_sync: reading the norm waits for nothing.
    """
    refuse_sparse(optimizer, "clip_grad_norm")
    if joined() and any(is_sharded(param) for param in parameters(optimizer)):
        return _clip_sharded(optimizer, max_norm)
    grads = [param.grad for param in parameters(optimizer) if param.grad is not None]
    if not grads:
        return torch.nn.utils.clip_grad_norm_([], max_norm)
    groups = by_kind(grads)
    if any(group[0].is_complex() for group in groups):
        groups = by_kind([real_values(param) for param in parameters(optimizer) if param.grad is not None])
    norm = _norm(groups, reads_without_sync)
    _scale(groups, norm, max_norm)
    return norm.to(torch.promote_types(groups[0][0].dtype, torch.float32))


def _scale(groups: list[list[torch.Tensor]], norm: torch.Tensor, max_norm: float) -> None:
    """Multiply gradients so that their norm is ``max_norm`` at most."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for group in groups:
        dtype = group[0].dtype
        wide = factor.to(group[0].device, torch.promote_types(dtype, torch.float32))
        if wide.dtype == dtype:
            torch._foreach_mul_(group, wide)
            continue
        for grad in group:  # with a factor of no dimensions, a GPU rounds it to the gradient's 16 bits
            grad.mul_(wide.reshape((1,) * grad.dim()))


def _norm(groups: list[list[torch.Tensor]], reads_without_sync: bool) -> torch.Tensor:
    """Return the 2-norm over all tensors, also where float32 cannot hold the squares.

    A CPU, where float64 is slower, computes it again in float64 when it overflowed; a GPU uses float64 at once.
    """
    if reads_without_sync:
        norm = _norm_in(groups, None)
        return norm if math.isfinite(norm) else _norm_in(groups, torch.float64)
    return _norm_in(groups, traits(groups[0][0].device).wide_dtype)


def _norm_in(groups: list[list[torch.Tensor]], dtype: torch.dtype | None) -> torch.Tensor:
    norms = [norm for group in groups for norm in torch._foreach_norm(group, 2, dtype=dtype)]
    wide = dtype or functools.reduce(torch.promote_types, {norm.dtype for norm in norms}, torch.float32)
    device = norms[0].device
    total: torch.Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(device, wide, non_blocking=True) for norm in norms])
    )
    return total


# -- parameters that DTensors hold ---------------------------------------------------------------------------------


def _clip_sharded(optimizer: Optimizer, max_norm: float) -> torch.Tensor:
    """Clip where some parameters are DTensors, on one mesh or several, and others may be plain tensors.

    A plain tensor counts once: its gradient is the same on every rank. Every rank communicates alike, also one that
    has no gradients or no rows of a shard.
    """
    sum_partial(optimizer)
    parts: dict[Layout | None, list[torch.Tensor]] = {}
    for param in parameters(optimizer):
        kept = parts.setdefault(_layout(param), [])
        if param.grad is not None:
            kept.append(real_values(param))
    first = local_part(next(parameters(optimizer)))
    square = torch.zeros((), dtype=traits(first.device).wide_dtype, device=first.device)
    for layout, grads in parts.items():
        square = square + _square(grads, square, layout)
    norm = square.sqrt()
    groups = by_kind([grad for grads in parts.values() for grad in grads])
    _scale([group for group in groups if group], norm, max_norm)
    return norm.float()


def _layout(param: torch.Tensor) -> Layout | None:
    mesh = mesh_of(param)
    return None if mesh is None else (mesh, param.placements)  # type: ignore[attr-defined]  # a DTensor's


def _square(grads: list[torch.Tensor], like: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """Return the sum of squares over the whole gradients, of which this rank has ``grads``."""
    here = [each for each in grads if each.numel()]
    square = torch.zeros_like(like)
    if here:
        square = _norm_in(by_kind(here), like.dtype).to(like.device).square()
    if layout is not None:
        mesh, placements = layout
        for dim, placement in enumerate(placements):
            if not placement.is_replicate():
                reduce_over(square, "sum", mesh.get_group(dim))
    return square
