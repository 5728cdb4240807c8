"""Moments as float8 numbers with a scale for a block of them: ``unifiedamp.backend.state_rounding``, bit for bit."""

from __future__ import annotations

import torch

from unifiedamp.backend import state_rounding

from .bfloat16_rounding import noise

BLOCK = state_rounding.BLOCK


def pack(values: torch.Tensor, squares: bool, key: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 moments as an E4M3 tensor of their shape, contiguous, and the scales of its blocks, float32.

    Args:
        values: of one parameter.
        squares: they are averages of squares, whose square roots are kept.
        key: from ``state_rounding.moment_key``.
        step: from ``rounding.step_key``.
    """
    flat = values.detach().contiguous().view(-1)
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    finite = blocks.isfinite()
    sizes = torch.where(finite, blocks, 0).abs_()
    roots = sizes.sqrt() if squares else sizes
    scales = _scales(roots.amax(dim=1), squares) if len(blocks) else blocks.new_empty(0)
    inverse = 1 / scales[:, None]
    scaled = roots * inverse
    exponent = (scaled.view(torch.int32) >> 23).clamp_(min=121).sub_(127)
    spacing = _power(exponent - 3)
    count = (scaled / spacing).floor_()
    low = count * spacing
    chance = noise(blocks.numel(), key, step, 0, blocks.device).view(blocks.shape).float()
    if squares:
        square = blocks * inverse * inverse
        up = chance * ((low + spacing) ** 2 - low**2) < 65536 * (square - low**2)
        up |= (count == 0) & (blocks > 0)
    else:
        up = chance < 65536 * ((scaled - low) / spacing)
    codes = (exponent + 6) * 8 + count.int() + up
    codes = torch.where(blocks.signbit() & (codes > 0), codes + 128, codes)
    codes = torch.where(finite, codes, state_rounding.NOT_A_NUMBER).to(torch.uint8)
    return codes.view(-1)[: flat.numel()].view(values.shape).clone().view(torch.float8_e4m3fn), scales


def unpack(codes: torch.Tensor, scales: torch.Tensor, squares: bool) -> torch.Tensor:
    """Return the float32 moments that :func:`pack` kept."""
    values = codes.float().view(-1) * scales.repeat_interleave(BLOCK)[: codes.numel()]
    return (values * values if squares else values).view(codes.shape)


def _scales(largest: torch.Tensor, squares: bool) -> torch.Tensor:
    exponent = (largest.view(torch.int32) >> 23).sub_(127 + state_rounding.TOP_EXPONENT)
    return _power(exponent.clamp_(min=state_rounding.SMALLEST_EXPONENTS[squares]))


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """Return 2 to the power of int32 exponents of normal numbers."""
    return ((exponent + 127) << 23).view(torch.float32)
