"""Values of a matrix times the scales of their rows or blocks, on their device; see ``forecast.SCALINGS``."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from unifiedamp.backend import FLOAT_FORMATS

from ..precision.rounding import round_to

E4M3, E2M1 = FLOAT_FORMATS["float8_e4m3fn"], FLOAT_FORMATS["float4_e2m1fn"]
WIDTHS = {"block128": 128, "block32": 32, "block16": 16}
LARGEST_SCALE, SMALLEST = 2.0**126, 2.0**-126
_EXPONENT = 0x7F800000


def scale_values(matrix: torch.Tensor, scaling: str, square: bool) -> torch.Tensor:
    """Return float32 values of shape (m, k) times their scales; bit-equal to ``unifiedamp.backend.rounding``'s.

    Args:
        matrix: products sum over its second dimension.
        scaling: of ``SCALINGS``.
        square: of "block128": blocks of 128 rows, as of weights.
    """
    rows, columns = matrix.shape
    width, height = WIDTHS.get(scaling, columns), 128 if square and scaling == "block128" else 1
    padded = pad(matrix.float(), (0, -columns % width, 0, -rows % height))
    blocks = padded.reshape(padded.shape[0] // height, height, -1, width)
    amax = blocks.abs().amax((1, 3), keepdim=True)
    scaled = _two_levels(blocks, amax) if scaling == "block16" else blocks * _scale(amax, scaling)
    return scaled.reshape(padded.shape)[:rows, :columns]


def _scale(amax: torch.Tensor, scaling: str) -> torch.Tensor:
    if scaling == "block32":
        return _power_of_two(amax).clamp(min=SMALLEST).reciprocal()
    return _power_of_two((E4M3.max / amax).clamp(max=LARGEST_SCALE))


def _power_of_two(values: torch.Tensor) -> torch.Tensor:
    return (values.view(torch.int32) & _EXPONENT).view(torch.float32)


def _two_levels(blocks: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    tensor = (amax.amax() / (E2M1.max * E4M3.max)).clamp(min=SMALLEST)
    scale = round_to(amax / E2M1.max / tensor, E4M3, saturate=True) * tensor
    lost = (blocks != 0).float() * SMALLEST
    return torch.where(scale > 0, blocks / torch.where(scale > 0, scale, 1.0), lost)
