"""Gradients of one optimizer: looking at them, dividing them by the scale, clipping, emptying."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from unifiedamp.backend import errors

Optimizer = torch.optim.Optimizer


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the optimizer's parameters in order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def drop(optimizer: Optimizer) -> None:
    """Let go of every gradient."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None


def any_there(optimizer: Optimizer) -> bool:
    """Tell whether any parameter has a gradient."""
    return any(param.grad is not None for param in parameters(optimizer))


def real_values(param: torch.Tensor) -> torch.Tensor:
    """Return what is there of a parameter's gradient, to write to: of a sparse one its values, of a complex one its
    real and imaginary parts.
    """
    grad = param.grad
    assert grad is not None
    if grad.is_conj():
        grad = param.grad = grad.resolve_conj()
    values = grad._values() if grad.is_sparse else grad
    return torch.view_as_real(values) if values.is_complex() else values


def unscale(optimizer: Optimizer, inverse: torch.Tensor, found: torch.Tensor) -> bool:
    """Multiply gradients by ``inverse`` in place and set ``found`` to 1 when one is not finite, on the device.

    Args:
        optimizer: whose gradients.
        inverse: 1 / scale, a float32 scalar.
        found: float32 scalar on the same device; left as it is when all are finite.

    Returns:
        Whether there was any gradient.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                values = real_values(param)
                groups.setdefault((values.device, values.dtype), []).append(values)
    for (device, _), grads in groups.items():
        if device == found.device:
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        else:
            there = torch.zeros((), device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, there, inverse.to(device, non_blocking=True))
            found.copy_(torch.maximum(found, there.to(found.device, non_blocking=True)))
    return bool(groups)


def clip_norm(optimizer: Optimizer, max_norm: float) -> torch.Tensor:
    """Clip the global 2-norm in place; return the norm before, a scalar on the device."""
    _refuse_sparse(optimizer, "clip_grad_norm")
    return torch.nn.utils.clip_grad_norm_(parameters(optimizer), max_norm)


def clip_value(optimizer: Optimizer, limit: float) -> None:
    """Clamp each element in place; of a complex one its real and its imaginary part."""
    _refuse_sparse(optimizer, "clip_grad_value")
    plain = []
    for param in parameters(optimizer):
        if param.grad is not None and param.grad.is_complex():
            real_values(param).clamp_(-limit, limit)
        else:
            plain.append(param)
    torch.nn.utils.clip_grad_value_(plain, limit)


def _refuse_sparse(optimizer: Optimizer, call: str) -> None:
    for param in parameters(optimizer):
        if param.grad is not None and param.grad.is_sparse:
            raise errors.UnsupportedError(
                f"amp.{call}: the gradient of a parameter of shape {tuple(param.shape)} is sparse, and torch cannot "
                "clip sparse gradients: make the embedding with sparse=False, or leave out the clipping"
            )
