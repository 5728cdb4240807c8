"""Gradients of one optimizer: reading them, dividing them by the scale, clamping, dropping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from unifiedamp.backend import errors

from ..device.kinds import traits
from ..distributed.wrapped import joined

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


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, in the same memory; any other tensor as it is."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "_local_tensor")


def real_values(param: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient as a real tensor to write to: the values of a sparse one, the real and imaginary
    parts of a complex one.
    """
    grad = param.grad
    assert grad is not None
    if grad.is_conj():
        grad = param.grad = grad.resolve_conj()
    values = local_part(grad._values() if grad.is_sparse else grad)
    return torch.view_as_real(values) if values.is_complex() else values


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a real dense tensor to read: the values of a sparse one, this rank's part of a DTensor, the
    real and imaginary parts of a complex one.
    """
    values = local_part(gradient._values() if gradient.is_sparse else gradient)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def sum_partial(optimizer: Optimizer) -> None:
    """Give DTensor gradients the placements of their parameters: tensor parallelism leaves sums that are pending, and
    what is judged and clipped is the whole gradient. Communicates, in the order of the parameters.
    """
    for param in parameters(optimizer):
        grad: Any = param.grad
        if grad is not None and is_sharded(grad):
            wanted: Any = getattr(param, "placements", grad.placements)
            if grad.placements != wanted:
                param.grad = grad.redistribute(placements=wanted)


def unscale(optimizer: Optimizer, inverse: torch.Tensor, found: torch.Tensor) -> bool:
    """Multiply gradients by ``inverse`` in place and set ``found`` to 1 when one is not finite, on the device.

    Args:
        optimizer: whose gradients.
        inverse: 1 / scale, a float32 scalar.
        found: float32 scalar on the same device; left as it is when all are finite.

    Returns:
        Whether there was any gradient.
    """
    shared = joined()
    if shared:
        sum_partial(optimizer)
    values = [
        real_values(param) if grad.is_sparse or grad.dtype.is_complex or (shared and is_sharded(grad)) else grad
        for group in optimizer.param_groups
        for param in group["params"]
        if (grad := param.grad) is not None
    ]
    for grads in by_kind(values):
        device = grads[0].device
        in_kernel = grads[0].dtype != torch.bfloat16 or traits(device).unscales_bfloat16
        run = torch._amp_foreach_non_finite_check_and_unscale_ if in_kernel else _check_and_unscale
        if device == found.device:
            run(grads, found, inverse)
        else:
            there = torch.zeros((), device=device)
            run(grads, there, inverse.to(device, non_blocking=True))
            found.copy_(torch.maximum(found, there.to(found.device, non_blocking=True)))
    return values != []


def _check_and_unscale(grads: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    """Do what torch's kernel does, by plain operations on the device; products are rounded once, from float32."""
    filled = [grad for grad in grads if grad.numel()]
    if filled:
        finite = torch.stack(torch._foreach_norm(filled, math.inf)).isfinite().all()
        found.copy_(torch.where(finite, found, 1.0))
    for grad in filled:
        grad.copy_(grad.float() * inverse)


def by_kind(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors of each device and dtype, in order; mostly there is one kind."""
    kinds = {(tensor.device, tensor.dtype): None for tensor in tensors}
    if len(kinds) == 1:
        return [tensors]
    return [[tensor for tensor in tensors if (tensor.device, tensor.dtype) == kind] for kind in kinds]


def clip_value(optimizer: Optimizer, limit: float) -> None:
    """Clamp each element in place; of a complex one its real and its imaginary part."""
    refuse_sparse(optimizer, "clip_grad_value")
    plain = []
    for param in parameters(optimizer):
        if param.grad is not None and param.grad.is_complex():
            real_values(param).clamp_(-limit, limit)
        elif param.grad is not None:
            plain.append(param)
    if plain:  # of none, torch does not know the device
        torch.nn.utils.clip_grad_value_(plain, limit)


def refuse_sparse(optimizer: Optimizer, call: str) -> None:
    """Refuse sparse gradients, for the method ``call`` of the session.

    Raises:
        UnsupportedError: one is sparse.
    """
    for param in parameters(optimizer):
        if param.grad is not None and param.grad.is_sparse:
            raise errors.UnsupportedError(
                f"amp.{call}: the gradient of a parameter of shape {tuple(param.shape)} is sparse, and torch cannot "
                "clip sparse gradients: make the embedding with sparse=False, or leave out the clipping"
            )
