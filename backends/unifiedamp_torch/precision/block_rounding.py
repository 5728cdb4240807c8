"""Rounding float32 tensors to a block format, by torch operations; bit-equal to ``unifiedamp.formats.round_blocks``.

Plain operations on the device, as in ``rounding``. Where a compiler divides by an approximate reciprocal (Triton on a
GPU), scales of NVFP4 and int8 may differ in float32's last place, and a number that lies as close to a tie may round to
the other side.
"""

from __future__ import annotations

import math

import torch

from unifiedamp.backend import FLOAT_FORMATS, BlockFormat, FloatFormat

from .rounding import round_to

_E4M3 = FLOAT_FORMATS["float8_e4m3fn"]
_SMALLEST_SCALE = 2.0**-126
_MANTISSA_BITS, _MAGNITUDE, _INFINITY = 23, 0x7FFFFFFF, 0x7F800000
_MAX_EXPONENTS = {name: form.max_exponent for name, form in FLOAT_FORMATS.items()}
"""Name of a format → ``max_exponent``, which dynamo would trace to its float operations."""


def round_blocks(values: torch.Tensor, format: BlockFormat) -> torch.Tensor:
    """Return the values as the block format holds them, times their scales, as float32.

    Args:
        values: float32; blocks lie along the last dimension, and zeros fill the last one.
        format: of the blocks. An inf or nan makes its block nan, or in NVFP4 the tensor.
    """
    columns = values.shape[-1]
    padded = torch.nn.functional.pad(values, (0, -columns % format.size))
    blocks = padded.reshape(*values.shape[:-1], -1, format.size)
    # Among bits: the nan that Inductor's maximum returns may be a negative one.
    amax = (blocks.view(torch.int32) & _MAGNITUDE).amax(-1, keepdim=True).view(torch.float32)
    rounded = _BY_SCALE[format.scale](blocks, amax, format.element)
    return rounded.reshape(padded.shape)[..., :columns].contiguous()


def _power_of_two(blocks: torch.Tensor, amax: torch.Tensor, element: FloatFormat) -> torch.Tensor:
    bits = amax.view(torch.int32)
    exponent = (bits >> _MANTISSA_BITS) - _MAX_EXPONENTS[element.name]
    scale = (exponent.clamp(min=1) << _MANTISSA_BITS).view(torch.float32)
    rounded = round_to(blocks / scale, element, saturate=True) * scale
    return torch.where(bits >= _INFINITY, math.nan, rounded)


def _two_levels(blocks: torch.Tensor, amax: torch.Tensor, element: FloatFormat) -> torch.Tensor:
    largest = amax.view(torch.int32).amax().view(torch.float32)
    tensor = _divided(largest, element.max * _E4M3.max).clamp(min=_SMALLEST_SCALE)
    scale = round_to(_divided(amax, element.max) / tensor, _E4M3, saturate=True) * tensor
    rounded = round_to(blocks / torch.where(scale > 0, scale, 1.0), element, saturate=True) * scale
    return torch.where(largest.isfinite(), rounded, math.nan)


def _float32(blocks: torch.Tensor, amax: torch.Tensor, element: FloatFormat) -> torch.Tensor:
    scale = _divided(amax, element.max).clamp(min=_SMALLEST_SCALE)
    rounded = round_to(blocks / scale, element, saturate=True) * scale
    return torch.where(amax.isfinite(), rounded, math.nan)


def _divided(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """Divide as IEEE does: by a Python number, torch's CUDA kernels multiply by a reciprocal that is rounded."""
    return values / torch.full_like(values, divisor)


_BY_SCALE = {"e8m0": _power_of_two, "e4m3": _two_levels, "float32": _float32}
