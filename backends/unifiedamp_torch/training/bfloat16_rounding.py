"""Rounding float32 tensors to bfloat16: stochastically, and with a compensation. As ``unifiedamp.backend.rounding``,
bit for bit.
"""

from __future__ import annotations

import torch

from unifiedamp.backend import rounding

BLOCK = 2**16
"""Elements rounded together on a CPU: the passes over them stay in its caches."""


def stochastic_(target: torch.Tensor, values: torch.Tensor, param: int, step: int) -> None:
    """Set a bfloat16 tensor to float32 values, each rounded up or down with a probability in proportion to the
    distance.

    Args:
        target: bfloat16; written in place.
        values: float32, of its shape; overwritten.
        param: from ``rounding.param_key``.
        step: from ``rounding.step_key``.
    """
    flat = values.contiguous().view(-1)
    size = BLOCK if flat.device.type == "cpu" else max(flat.numel(), 1)
    for start in range(0, flat.numel(), size):
        _round_block(flat[start : start + size], start, param, step)
    target.copy_(flat.view(values.shape))


def _round_block(values: torch.Tensor, start: int, param: int, step: int) -> None:
    """Round a contiguous float32 block in place; ``start`` is its first element's place in the parameter."""
    bits = values.view(torch.int32)
    noisy = noise(values.numel(), param, step, start, values.device).add_(bits).bitwise_and_(-(2**16))
    values.copy_(torch.where(values.isnan(), values, noisy.view(torch.float32)))


def noise(
    size: int, param: int | torch.Tensor, step: int | torch.Tensor, start: int = 0, device: torch.device | None = None
) -> torch.Tensor:
    """Return ``rounding.noise`` of the elements from ``start`` on, int32; keys that are tensors are int32 scalars."""
    mixed = torch.arange(start, start + size, device=device, dtype=torch.int32)
    for key in (param, step):
        mixed.add_(key if isinstance(key, torch.Tensor) else _signed(key))
        for shift, factor in rounding.FMIX:
            mixed.bitwise_xor_((mixed >> shift).bitwise_and_(2 ** (32 - shift) - 1))
            if factor != 1:
                mixed.mul_(_signed(factor))
    return mixed.bitwise_right_shift_(16).bitwise_and_(2**rounding.NOISE_BITS - 1)


def kahan_split(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bfloat16 weight of float32 values, and the bfloat16 compensation of what it leaves out."""
    weight = values.bfloat16()
    total = weight + (values - weight).bfloat16().float()
    finite = total.isfinite()
    weight = torch.where(finite, total.bfloat16(), weight)
    return weight, torch.where(finite, total - weight, 0).bfloat16()


def _signed(number: int) -> int:
    """Return the int32 of the same bits."""
    return number - 2**32 if number >= 2**31 else number
