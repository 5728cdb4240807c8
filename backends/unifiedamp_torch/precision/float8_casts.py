"""Casts of matrices to float8: the numbers, their scales, and transposed copies, by plain torch operations.

The operands of every product pass through :func:`cast`. Where a GPU multiplies float8, ``float8_kernels`` casts and
transposes in one pass over memory. What both keep:

- A scale is ``float8_max / amax``, at most :data:`LARGEST_SCALE`; of rows and blocks it is rounded down to a power of
  two, as in torchao's rowwise recipe and Transformer Engine's block scaling, so that scaling itself rounds nothing.
- An inf or nan among the values reaches every element of the product that it takes part in: the inverse scale or the
  float8 number becomes inf or nan. Of values beyond the range of a *given* scale, only finite ones are clamped.
- Nothing is read from the device: dynamo traces it without a break, and a CUDA graph captures it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import BLOCK_FORMATS

from .block_rounding import round_blocks

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BLOCK = 128
"""Values of a row, and rows of a weight, that share a scale in block scaling."""
LARGEST_SCALE = 2.0**126
"""The scale of a tensor of zeros; its inverse is still a normal float32 number."""

TENSOR, ROW, BLOCKS, SQUARES = "tensor", "row", "blocks", "squares"
"""What has one scale: the tensor, each row, each 1 x 128 values, each 128 x 128 values. Besides these, a name of
``BLOCK_FORMATS``.
"""

_SIGN_AND_EXPONENT = -0x800000


class Scaled(NamedTuple):
    """A matrix in float8, or in a block format, which is emulated alone: float32 numbers that are scaled back.

    Attributes:
        values: float8 of shape (m, k), row-major.
        inverse: what the numbers are multiplied by to get the values back, float32: shape (1,) of the tensor, (m, 1) of
            rows, (m, k / 128) of blocks, (m / 128, k / 128) of squares, (1, 1) of ones in a block format.
    """

    values: torch.Tensor
    inverse: torch.Tensor


class Cast(NamedTuple):
    """What :func:`cast` returns.

    Attributes:
        rows: the matrix; None where it was not asked for.
        transposed: the transposed matrix, itself row-major and scaled along its own rows; None likewise.
        amax: the largest magnitude, float32 of shape (1,), of one scale for the tensor; else None.
    """

    rows: Scaled | None
    transposed: Scaled | None
    amax: torch.Tensor | None = None


def cast(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    scaling: str,
    *,
    rows: bool = True,
    transposed: bool = False,
    scale: torch.Tensor | None = None,
    kernels: bool = False,
) -> Cast:
    """Return a matrix in float8, its transposed copy, or both.

    Args:
        tensor: float32, bfloat16 or float16 of shape (m, k), in any layout; for blocks, k (m too for a transposed
            copy, or squares) is a multiple of 128.
        dtype: ``E4M3`` or ``E5M2``.
        scaling: ``TENSOR``, ``ROW``, ``BLOCKS``, ``SQUARES`` or a block format, which ``dtype`` is not asked for.
        rows: return the matrix.
        transposed: return the transposed copy.
        scale: the scale of the tensor, float32 of shape (1,), for ``TENSOR``; None computes it from the amax.
        kernels: use those of ``float8_kernels`` where they save a pass over memory; the numbers are the same.
    """
    if kernels and (transposed or scaling != TENSOR):
        return _by_kernel(tensor.contiguous(), dtype, scaling, rows, transposed, scale)
    if scaling == TENSOR:
        whole, amax = _by_tensor(tensor, dtype, scale)
        return Cast(whole if rows else None, transpose(whole) if transposed else None, amax)
    if scaling == SQUARES:
        whole = _by_block(tensor, dtype, BLOCK)
        return Cast(whole if rows else None, transpose(whole) if transposed else None)
    along: Any = functools.partial(_in_blocks, scaling) if scaling in BLOCK_FORMATS else _BY_SCALING[scaling]
    return Cast(along(tensor, dtype) if rows else None, along(tensor.t(), dtype) if transposed else None)


def _in_blocks(format: str, tensor: torch.Tensor, _dtype: torch.dtype) -> Scaled:
    return Scaled(
        round_blocks(tensor.float(), BLOCK_FORMATS[format]), torch.ones(1, 1, dtype=torch.float32, device=tensor.device)
    )


def _by_kernel(
    tensor: torch.Tensor, dtype: torch.dtype, scaling: str, rows: bool, transposed: bool, scale: torch.Tensor | None
) -> Cast:
    from . import float8_kernels  # it needs Triton, which comes with torch where there is a GPU

    amax = None
    if scaling == TENSOR:
        if scale is None:
            amax = tensor.abs().amax().float().reshape(1)  # Inductor takes it where the tensor is computed
            scale = _tensor_scale(amax, dtype)
            values, turned, _ = float8_kernels.by_tensor(tensor, scale, dtype, False)
        else:
            values, turned, amax = float8_kernels.by_tensor(tensor, scale, dtype, True)
        inverse = across = scale.reciprocal()
    elif scaling == ROW:
        values, turned, inverse, across = float8_kernels.by_row(tensor, dtype, transposed)
    else:
        values, turned, inverse, across = float8_kernels.by_block(tensor, dtype, scaling == SQUARES)
    return Cast(Scaled(values, inverse) if rows else None, Scaled(turned, across) if transposed else None, amax)


def same_transposed(scaling: str) -> bool:
    """Return whether the transposed copy holds the same numbers, so that :func:`transpose` makes it."""
    return scaling in (TENSOR, SQUARES)


def transpose(matrix: Scaled) -> Scaled:
    """Return the transposed matrix, row-major; for one scale per tensor or square."""
    values, inverse = matrix
    return Scaled(values.t().contiguous(), inverse if inverse.dim() == 1 else inverse.t().contiguous())


def _by_tensor(tensor: torch.Tensor, dtype: torch.dtype, given: torch.Tensor | None) -> tuple[Scaled, torch.Tensor]:
    tensor = tensor.contiguous()
    amax = tensor.abs().amax().float().reshape(1)
    if given is None:
        scale = _tensor_scale(amax, dtype)
        return Scaled((tensor * scale).to(dtype), scale.reciprocal()), amax
    largest = torch.finfo(dtype).max
    values = (tensor * given).clamp(-largest, largest).to(dtype)
    # Clamping makes an inf finite; the inverse scale tells of it instead.
    return Scaled(values, torch.where(amax.isfinite(), given.reciprocal(), torch.nan)), amax


def _tensor_scale(amax: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (torch.finfo(dtype).max / amax).clamp(max=LARGEST_SCALE)


def _by_row(tensor: torch.Tensor, dtype: torch.dtype) -> Scaled:
    scale = row_scale(tensor.abs().amax(1, keepdim=True), dtype)
    return Scaled((tensor * scale).to(dtype).contiguous(), scale.reciprocal())


def _by_block(tensor: torch.Tensor, dtype: torch.dtype, high: int = 1) -> Scaled:
    m, k = tensor.shape
    blocks = tensor.reshape(m // high, high, k // BLOCK, BLOCK)
    scale = row_scale(blocks.abs().amax((1, 3), keepdim=True), dtype)
    values = (blocks * scale).to(dtype).reshape(m, k).contiguous()
    return Scaled(values, scale.reciprocal().reshape(m // high, k // BLOCK))


def row_scale(amax: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float32 scales of largest magnitudes, rounded down to powers of two; 0 of an inf, inf of a nan."""
    scale = torch.finfo(dtype).max / amax.float()
    return (scale.clamp(max=LARGEST_SCALE).view(torch.int32) & _SIGN_AND_EXPONENT).view(torch.float32)


_BY_SCALING = {ROW: _by_row, BLOCKS: _by_block}
