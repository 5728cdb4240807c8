"""Products of two float8 matrices, by torch's kernels or emulated in float32 on any device."""

from __future__ import annotations

import torch

from .float8_casts import BLOCK, BLOCKS, ROW, TENSOR, Scaled


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
        scaling: that of both operands: ``TENSOR``, ``ROW``, ``BLOCKS``, of which ``b`` may have squares, or a block
            format, which is emulated alone.
        dtype: of the result. Where scales are finer than the tensor, the product is rounded to bfloat16 first, which
            is what the hardware's kernels return.
        emulate: multiply in float32, on any device; it holds every product of two float8 numbers exactly.
        bias: bfloat16 of shape (n,), or None.
        fast: let the hardware sum in fewer bits (``use_fast_accum``).
    """
    out_dtype = dtype if scaling == TENSOR else torch.bfloat16
    run = _emulated if emulate else _native
    out = run(a, b, scaling, out_dtype, bias, fast)
    # No cast that changes nothing: in torch 2.11, compiled, a custom function whose result is one has zero gradients.
    return out if out_dtype is dtype else out.to(dtype)


def _emulated(
    a: Scaled, b: Scaled, scaling: str, dtype: torch.dtype, bias: torch.Tensor | None, _fast: bool
) -> torch.Tensor:
    if scaling == BLOCKS:
        return _with_bias((_unscaled(a) @ _unscaled(b).t()).to(dtype), bias)
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
    if scaling == BLOCKS:
        return _with_bias(_by_blocks(a, b, dtype), bias)
    right = b.inverse.t() if scaling == ROW else b.inverse
    return torch._scaled_mm(
        a.values, b.values.t(), scale_a=a.inverse, scale_b=right, bias=bias, out_dtype=dtype, use_fast_accum=fast
    )


def _by_blocks(a: Scaled, b: Scaled, dtype: torch.dtype) -> torch.Tensor:
    """Return the product by cuBLAS's kernel, which torch 2.10 and newer have for compute capability 9.0.

    Inverse scales of 1 x 128 values are column-major. cuBLAS reads those of squares at a distance that is a multiple of
    four numbers, which ``torch._scaled_mm`` takes only where their count is one; else each row gets its own.
    """
    left, right = a.inverse.t().contiguous().t(), b.inverse
    rows, columns = right.shape
    if rows != len(b.values) and columns % 4:
        right = right.repeat_interleave(BLOCK, 0)
        rows = len(right)
    right = right.t().contiguous() if rows == len(b.values) else right.contiguous().t()
    return torch._scaled_mm(a.values, b.values.t(), scale_a=left, scale_b=right, out_dtype=dtype)


def _with_bias(out: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return out if bias is None else out + bias
