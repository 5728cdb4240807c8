"""Products of two float8 matrices, by ``torch._scaled_mm`` or emulated in float32 on any device."""

from __future__ import annotations

import torch

from .float8_casts import BLOCK, BLOCKS, ROW, Scaled


def product(
    a: Scaled,
    b: Scaled,
    scaling: str,
    dtype: torch.dtype,
    emulate: bool,
    bias: torch.Tensor | None = None,
    fast: bool = False,
) -> torch.Tensor:
    """Return ``a @ b.t() (+ bias)`` in ``dtype``.

    Args:
        a: of shape (m, k).
        b: of shape (n, k).
        scaling: that of both operands, ``ROW``, ``BLOCKS`` (of which one operand may have squares) or else the tensor's.
        dtype: of the result. Where scales are finer than the tensor, the product is rounded to bfloat16 first, which
            is what the hardware's kernels return.
        emulate: multiply in float32, on any device; it holds every product of two float8 numbers exactly.
        bias: bfloat16 of shape (n,), or None.
        fast: let the hardware sum in fewer bits (``use_fast_accum``).
    """
    out_dtype = torch.bfloat16 if scaling in (ROW, BLOCKS) else dtype
    run = _emulated if emulate else _native
    return run(a, b, scaling, out_dtype, bias, fast).to(dtype)


def _emulated(
    a: Scaled, b: Scaled, scaling: str, dtype: torch.dtype, bias: torch.Tensor | None, _fast: bool
) -> torch.Tensor:
    if scaling == BLOCKS:
        out = _unscaled(a) @ _unscaled(b).t()
    else:
        out = (a.values.float() @ b.values.t().float()) * a.inverse * b.inverse.t()
    return (out if bias is None else out + bias.float()).to(dtype)


def _unscaled(matrix: Scaled) -> torch.Tensor:
    """Return float32 values; scales of blocks are powers of two, so nothing is rounded."""
    values, inverse = matrix
    (m, k), (p, q) = values.shape, inverse.shape
    return (values.float().reshape(p, m // p, q, k // q) * inverse[:, None, :, None]).reshape(m, k)


def _native(
    a: Scaled, b: Scaled, scaling: str, dtype: torch.dtype, bias: torch.Tensor | None, fast: bool
) -> torch.Tensor:
    left, right = a.inverse, b.inverse
    if scaling == ROW:
        right = right.t()
    elif scaling == BLOCKS:
        left, right = _laid_out(a), _laid_out(b).t()
        out = torch._scaled_mm(a.values, b.values.t(), scale_a=left, scale_b=right, out_dtype=dtype)
        return out if bias is None else out + bias
    return torch._scaled_mm(
        a.values, b.values.t(), scale_a=left, scale_b=right, bias=bias, out_dtype=dtype, use_fast_accum=fast
    )


def _laid_out(matrix: Scaled) -> torch.Tensor:
    """Return the inverse scales of blocks as ``torch._scaled_mm`` wants them: column-major; of squares, rows padded to
    a multiple of four numbers.
    """
    inverse = matrix.inverse
    squares = inverse.shape[0] != matrix.values.shape[0]
    if not squares:
        return inverse.t().contiguous().t()
    columns = matrix.values.shape[1] // BLOCK
    return torch.nn.functional.pad(inverse, (0, -columns % 4))[:, :columns]
