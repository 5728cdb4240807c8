"""Casts of grouped rows to float8 as Triton kernels: rows, and transposed groups, in one pass over memory.

The numbers are those of ``float8_grouped``'s plain operations, bit for bit; see ``float8_kernels``. A program casts a
tile of padded rows, so that what it writes transposed begins at a multiple of 16 bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .float8_casts import E4M3, row_scale
from .float8_kernels import bits_of, power_of_two, reciprocal, scaled_values

_TILE, _WARPS = (64, 128), 4
_LARGEST = 448.0

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton reads the bodies of these functions; they are no Python at run time.


@triton.jit
def _load(tensor, m, rows, cols, n):
    mask = (m < rows)[:, None] & (n < cols)[None, :]
    return tl.load(tensor + m[:, None].to(tl.int64) * cols + n[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _groups_of_tile(group, length, BM: tl.constexpr):
    """The first and the last group of this program's rows."""
    first = tl.program_id(0) * BM
    return tl.load(group + first), tl.load(group + tl.minimum(first + BM, length) - 1)


@triton.jit
def _bounds(bounds, each):
    return tl.multiple_of(tl.load(bounds + each), 16), tl.multiple_of(tl.load(bounds + each + 1), 16)


@triton.jit
def _amax_kernel(
    tensor, source, group, bounds, of_rows, of_groups, rows, cols, length, groups,
    BM: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    p, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    m = tl.load(source + p, mask=p < length, other=rows)
    bits = bits_of(_load(tensor, m, rows, cols, n))
    if ROWS:
        tl.atomic_max(of_rows + m, tl.max(bits, 1), mask=m < rows, sem="relaxed")
    low, high = _groups_of_tile(group, length, BM)
    for each in range(low, tl.minimum(high + 1, groups)):
        begin, end = _bounds(bounds, each)
        here = tl.max(tl.where(((p >= begin) & (p < end))[:, None], bits, 0), 0)
        tl.atomic_max(of_groups + each * cols + n, here, mask=n < cols, sem="relaxed")


@triton.jit
def _cast_kernel(
    tensor, source, group, bounds, of_rows, of_groups, values, inverse, turned, rows, cols, length, groups, step,
    col_stride, LARGEST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    p, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    m = tl.load(source + p, mask=p < length, other=rows)
    loaded = _load(tensor, m, rows, cols, n)
    if ROWS:
        scale = power_of_two(tl.load(of_rows + m, mask=m < rows, other=0), LARGEST)
        low = scaled_values(loaded, scale[:, None]).to(values.dtype.element_ty)
        mask = (m < rows)[:, None] & (n < cols)[None, :]
        tl.store(values + m[:, None].to(tl.int64) * cols + n[None, :], low, mask=mask)
        tl.store(inverse + m, reciprocal(scale), mask=(m < rows) & (tl.program_id(1) == 0))
    first, last = _groups_of_tile(group, length, BM)
    for each in range(first, tl.minimum(last + 1, groups)):
        begin, end = _bounds(bounds, each)
        across = power_of_two(tl.load(of_groups + each * cols + n, mask=n < cols, other=0), LARGEST)
        turn = tl.trans(scaled_values(loaded, across[None, :]).to(turned.dtype.element_ty))
        inside = (n < cols)[:, None] & ((p >= begin) & (p < end))[None, :]
        at = tl.multiple_of(tl.cast(each, tl.int64) * step, 16)
        tl.store(turned + at + n[:, None].to(tl.int64) * col_stride + p[None, :], turn, mask=inside)


Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _results(tensor: torch.Tensor, groups: int, length: int, rows: bool) -> Four:
    (m, k), cols = tensor.shape if rows else (0, 0), tensor.shape[1]
    return (
        tensor.new_empty((m, k), dtype=E4M3),
        tensor.new_empty((m, 1), dtype=torch.float32),
        tensor.new_empty(length * cols, dtype=E4M3),
        tensor.new_empty((groups, cols), dtype=torch.float32),
    )


@torch.library.custom_op("unifiedamp::float8_by_group", mutates_args=())
def by_group(
    tensor: torch.Tensor,
    source: torch.Tensor,
    group: torch.Tensor,
    bounds: torch.Tensor,
    group_stride: int,
    col_stride: int,
    rows: bool,
) -> Four:
    """Return the matrix with a scale per row, and transposed groups with a scale per group and column, each before its
    inverse scales.

    Args:
        tensor: shape (m, k), row-major, on a CUDA device.
        source: int32 of shape (padded rows,), the row that goes there; m for none, which becomes zeros.
        group: int32 of shape (padded rows,), rising: the group; the number of groups after the last.
        bounds: int32 of shape (groups + 1,): where the padded groups begin and end, multiples of 16.
        group_stride: numbers from one transposed group to the next, in place of its padded rows; 0: they are side by
            side, each column ``col_stride`` numbers after the last.
        col_stride: numbers from one column to the next in what is transposed.
        rows: else the first two results are empty. Rows of no group are left unwritten.
    """
    (m, k), length, groups = tensor.shape, len(source), len(bounds) - 1
    values, inverse, turned, across = _results(tensor, groups, length, rows)
    of_rows = tensor.new_zeros(m if rows else 0, dtype=torch.int32)
    of_groups = tensor.new_zeros((groups, k), dtype=torch.int32)
    step = group_stride - col_stride if group_stride else 0
    grid = triton.cdiv(length, _TILE[0]), triton.cdiv(k, _TILE[1])
    with torch.cuda.device(tensor.device):
        _amax_kernel[grid](
            tensor, source, group, bounds, of_rows, of_groups, m, k, length, groups, *_TILE, rows, num_warps=_WARPS
        )
        _cast_kernel[grid](
            tensor, source, group, bounds, of_rows, of_groups, values, inverse, turned, m, k, length, groups, step,
            col_stride, _LARGEST, *_TILE, rows, num_warps=_WARPS,
        )  # fmt: skip
    across.copy_(row_scale(of_groups.view(torch.float32), E4M3).reciprocal())
    return values, inverse, turned, across


@by_group.register_fake
def _(
    tensor: torch.Tensor,
    source: torch.Tensor,
    group: torch.Tensor,  # noqa: ARG001  # of the operator
    bounds: torch.Tensor,
    group_stride: int,  # noqa: ARG001  # of the operator
    col_stride: int,  # noqa: ARG001  # of the operator
    rows: bool,
) -> Four:
    return _results(tensor, len(bounds) - 1, len(source), rows)
