"""Gradients of one optimizer: reading them, dividing them by the scale, clipping, dropping."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import torch

from unifiedamp.backend import errors

from ..device.kinds import traits

Optimizer = torch.optim.Optimizer


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the optimizer's parameters in order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def zero_grad(optimizer: Optimizer) -> None:
    """Set every gradient to None."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None


def drop_frozen(optimizer: Optimizer, model_param: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Set the gradients of frozen parameters to None; ``model_param`` returns the model's own of a master."""
    for param in parameters(optimizer):
        if param.grad is not None and not model_param(param).requires_grad:
            param.grad = None


def has_gradients(optimizer: Optimizer) -> bool:
    """Return whether any parameter has a gradient."""
    return any(param.grad is not None for param in parameters(optimizer))


def has_sparse(optimizer: Optimizer) -> bool:
    """Return whether any gradient is sparse."""
    return any(param.grad is not None and param.grad.is_sparse for param in parameters(optimizer))


def real_values(param: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient as a real tensor to write to: the values of a sparse one, the real and imaginary
    parts of a complex one.
    """
    grad = param.grad
    assert grad is not None
    if grad.is_conj():
        grad = param.grad = grad.resolve_conj()
    values = grad._values() if grad.is_sparse else grad
    return torch.view_as_real(values) if values.is_complex() else values


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a real dense tensor to read: the values of a sparse one, this rank's part of a DTensor, the
    real and imaginary parts of a complex one.
    """
    values = gradient._values() if gradient.is_sparse else gradient
    values = getattr(values, "_local_tensor", values)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def unscale(optimizer: Optimizer, inverse: torch.Tensor, found: torch.Tensor) -> bool:
    """Multiply gradients by ``inverse`` in place and set ``found`` to 1 when one is not finite, on the device.

    Args:
        optimizer: whose gradients.
        inverse: 1 / scale, a float32 scalar.
        found: float32 scalar on the same device; left as it is when all are finite.

    Returns:
        Whether there was any gradient.
    """
    values = [
        real_values(param) if grad.is_sparse or grad.dtype.is_complex else grad
        for group in optimizer.param_groups
        for param in group["params"]
        if (grad := param.grad) is not None
    ]
    for grads in _by_kind(values):
        device = grads[0].device
        if device == found.device:
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        else:
            there = torch.zeros((), device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, there, inverse.to(device, non_blocking=True))
            found.copy_(torch.maximum(found, there.to(found.device, non_blocking=True)))
    return values != []


def clip_norm(optimizer: Optimizer, max_norm: float, reads_without_sync: bool) -> torch.Tensor:
    """Clip the global 2-norm in place; return the norm before, a scalar on the device.

    Args:
        optimizer: whose gradients.
        max_norm: the largest norm.
        reads_without_sync: reading the norm waits for nothing.
    """
    _refuse_sparse(optimizer, "clip_grad_norm")
    grads = [param.grad for param in parameters(optimizer) if param.grad is not None]
    if not grads or any(hasattr(grad, "_local_tensor") for grad in grads):  # DTensors are summed over ranks by torch
        return torch.nn.utils.clip_grad_norm_(parameters(optimizer), max_norm)
    groups = _by_kind(grads)
    if any(group[0].is_complex() for group in groups):
        groups = _by_kind([real_values(param) for param in parameters(optimizer) if param.grad is not None])
    norm = _norm(groups, reads_without_sync)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for group in groups:
        torch._foreach_mul_(group, factor.to(group[0].device, torch.promote_types(group[0].dtype, torch.float32)))
    return norm.to(torch.promote_types(groups[0][0].dtype, torch.float32))


def _by_kind(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors of each device and dtype, in order; mostly there is one kind."""
    kinds = {(tensor.device, tensor.dtype): None for tensor in tensors}
    if len(kinds) == 1:
        return [tensors]
    return [[tensor for tensor in tensors if (tensor.device, tensor.dtype) == kind] for kind in kinds]


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


def clip_value(optimizer: Optimizer, limit: float) -> None:
    """Clamp each element in place; of a complex one its real and its imaginary part."""
    _refuse_sparse(optimizer, "clip_grad_value")
    plain = []
    for param in parameters(optimizer):
        if param.grad is not None and param.grad.is_complex():
            real_values(param).clamp_(-limit, limit)
        elif param.grad is not None:
            plain.append(param)
    if plain:  # of none, torch does not know the device
        torch.nn.utils.clip_grad_value_(plain, limit)


def _refuse_sparse(optimizer: Optimizer, call: str) -> None:
    for param in parameters(optimizer):
        if param.grad is not None and param.grad.is_sparse:
            raise errors.UnsupportedError(
                f"amp.{call}: the gradient of a parameter of shape {tuple(param.shape)} is sparse, and torch cannot "
                "clip sparse gradients: make the embedding with sparse=False, or leave out the clipping"
            )
