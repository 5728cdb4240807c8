"""Casts to float8 as Triton kernels: a matrix and its transposed copy in one pass over memory.

Plain operations write the transposed copy in a second pass, with single bytes as far apart as a row is long. The
numbers are those of ``float8_casts``, bit for bit. Each cast is one custom operator: dynamo and CUDA graphs take it as
it is, and AOTAutograd computes it once for layers that share an input.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BLOCK = 128
_FINITE_MAX = {E4M3: 448.0, E5M2: 57344.0}
_TILE, _ROW_TILE = (128, 128), (128, 64)
"""Rows and columns that one program casts, for one scale and for a scale per row: the fastest of seven on an H200."""
_WARPS = 4


# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton reads the bodies of these functions; they are no Python at run time.


@triton.jit
def _tile(pointer, rows, cols, m, n):
    mask = (m[:, None] < rows) & (n[None, :] < cols)
    return tl.load(pointer + m[:, None].to(tl.int64) * cols + n[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, values, rows, cols, m, n):
    mask = (m[:, None] < rows) & (n[None, :] < cols)
    tl.store(pointer + m[:, None].to(tl.int64) * cols + n[None, :], values, mask=mask)


@triton.jit
def bits_of(values):
    """Magnitudes as integers, which order as the numbers do; nan is the largest."""
    return tl.abs(values).to(tl.int32, bitcast=True)


@triton.jit
def scaled_values(values, scale):
    """Hardware casts an inf to the largest finite number: make it nan before."""
    return tl.where(tl.abs(values) == float("inf"), float("nan"), values * scale)


@triton.jit
def power_of_two(amax_bits, largest: tl.constexpr):
    """The scale of a largest magnitude, rounded down to a power of two."""
    amax = amax_bits.to(tl.float32, bitcast=True)
    scale = tl.minimum(tl.div_rn(tl.full(amax.shape, largest, tl.float32), amax), 2.0**126)
    return (scale.to(tl.int32, bitcast=True) & -0x800000).to(tl.float32, bitcast=True)


@triton.jit
def reciprocal(scale):
    """The inverse scale, rounded as torch rounds it."""
    return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)


@triton.jit
def _tensor_kernel(
    tensor, scale, values, transposed, amax, rows, cols, BM: tl.constexpr, BN: tl.constexpr, AMAX: tl.constexpr
):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    loaded = _tile(tensor, rows, cols, m, n)
    low = scaled_values(loaded, tl.load(scale)).to(values.dtype.element_ty)
    _store(values, low, rows, cols, m, n)
    # The scale is read again, so that each store has its own cast: where float32 values are cast once for both, Triton
    # 3.6 mixes up neighbours in the transposed copy.
    low = scaled_values(loaded, tl.load(scale, volatile=True)).to(values.dtype.element_ty)
    _store(transposed, tl.trans(low), cols, rows, n, m)
    if AMAX:
        tl.atomic_max(amax.to(tl.pointer_type(tl.int32)), tl.max(tl.max(bits_of(loaded), 1), 0), sem="relaxed")


@triton.jit
def _amax_kernel(tensor, of_rows, of_cols, rows, cols, BM: tl.constexpr, BN: tl.constexpr, BOTH: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    bits = bits_of(_tile(tensor, rows, cols, m, n))
    tl.atomic_max(of_rows + m, tl.max(bits, 1), mask=m < rows, sem="relaxed")
    if BOTH:
        tl.atomic_max(of_cols + n, tl.max(bits, 0), mask=n < cols, sem="relaxed")


@triton.jit
def _row_kernel(
    tensor, of_rows, of_cols, values, transposed, inverse, inverse_transposed, rows, cols,
    LARGEST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BOTH: tl.constexpr,
):  # fmt: skip
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    loaded = _tile(tensor, rows, cols, m, n)
    scale = power_of_two(tl.load(of_rows + m, mask=m < rows, other=0), LARGEST)
    _store(values, scaled_values(loaded, scale[:, None]).to(values.dtype.element_ty), rows, cols, m, n)
    tl.store(inverse + m, reciprocal(scale), mask=(m < rows) & (tl.program_id(1) == 0))
    if BOTH:
        across = power_of_two(tl.load(of_cols + n, mask=n < cols, other=0), LARGEST)
        low = scaled_values(loaded, across[None, :]).to(values.dtype.element_ty)
        _store(transposed, tl.trans(low), cols, rows, n, m)
        tl.store(inverse_transposed + n, reciprocal(across), mask=(n < cols) & (tl.program_id(0) == 0))


@triton.jit
def _block_kernel(
    tensor, values, transposed, inverse, inverse_transposed, rows, cols, LARGEST: tl.constexpr, SIZE: tl.constexpr
):
    """Inverse scales are written column-major, as ``torch._scaled_mm`` reads those of 1 x 128 values."""
    i, j = tl.program_id(0), tl.program_id(1)
    m, n = i * SIZE + tl.arange(0, SIZE), j * SIZE + tl.arange(0, SIZE)
    loaded = _tile(tensor, rows, cols, m, n)
    bits = bits_of(loaded)
    scale, across = power_of_two(tl.max(bits, 1), LARGEST), power_of_two(tl.max(bits, 0), LARGEST)
    _store(values, scaled_values(loaded, scale[:, None]).to(values.dtype.element_ty), rows, cols, m, n)
    low = scaled_values(loaded, across[None, :]).to(values.dtype.element_ty)
    _store(transposed, tl.trans(low), cols, rows, n, m)
    tl.store(inverse + j * rows + m, reciprocal(scale), mask=m < rows)
    tl.store(inverse_transposed + i * cols + n, reciprocal(across), mask=n < cols)


@triton.jit
def _square_kernel(
    tensor, values, transposed, inverse, inverse_transposed, rows, cols, LARGEST: tl.constexpr, SIZE: tl.constexpr
):
    i, j = tl.program_id(0), tl.program_id(1)
    m, n = i * SIZE + tl.arange(0, SIZE), j * SIZE + tl.arange(0, SIZE)
    loaded = _tile(tensor, rows, cols, m, n)
    bits = bits_of(loaded)
    scale = power_of_two(tl.max(tl.max(bits, 1), 0), LARGEST)
    _store(values, scaled_values(loaded, scale).to(values.dtype.element_ty), rows, cols, m, n)
    across = power_of_two(tl.max(tl.max(bits, 0), 0), LARGEST)  # the same; a cast for each store, as above
    _store(transposed, tl.trans(scaled_values(loaded, across).to(values.dtype.element_ty)), cols, rows, n, m)
    back = tl.div_rn(1.0, scale)
    tl.store(inverse + i * tl.num_programs(1) + j, back)
    tl.store(inverse_transposed + j * tl.num_programs(0) + i, back)


Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _grid(tensor: torch.Tensor, tile: tuple[int, int]) -> tuple[int, int]:
    return triton.cdiv(tensor.shape[0], tile[0]), triton.cdiv(tensor.shape[1], tile[1])


def _pair(tensor: torch.Tensor, dtype: torch.dtype, both: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = tensor.shape
    return tensor.new_empty((m, k), dtype=dtype), tensor.new_empty((k, m) if both else (0, 0), dtype=dtype)


@torch.library.custom_op("unifiedamp::float8_by_tensor", mutates_args=())
def by_tensor(
    tensor: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, wants_amax: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the matrix and its transposed copy in float8, both row-major, and the largest magnitude.

    Args:
        tensor: shape (m, k), row-major, on a CUDA device.
        scale: float32 of shape (1,).
        dtype: ``E4M3`` or ``E5M2``. Finite values beyond its range become its largest number, an inf nan.
        wants_amax: else the third result is 0.
    """
    values, transposed = _pair(tensor, dtype)
    amax = tensor.new_zeros(1, dtype=torch.float32)
    with torch.cuda.device(tensor.device):
        _tensor_kernel[_grid(tensor, _TILE)](
            tensor, scale, values, transposed, amax, *tensor.shape, *_TILE, wants_amax, num_warps=_WARPS
        )
    return values, transposed, amax


@by_tensor.register_fake
def _(
    tensor: torch.Tensor,
    scale: torch.Tensor,  # noqa: ARG001  # of the operator
    dtype: torch.dtype,
    wants_amax: bool,  # noqa: ARG001  # of the operator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return *_pair(tensor, dtype), tensor.new_empty(1, dtype=torch.float32)


@torch.library.custom_op("unifiedamp::float8_by_row", mutates_args=())
def by_row(tensor: torch.Tensor, dtype: torch.dtype, both: bool) -> Four:
    """Return the matrix with a scale per row, its transposed copy with a scale per row of that, and inverse scales.

    Args:
        tensor: shape (m, k), row-major, on a CUDA device.
        dtype: ``E4M3`` or ``E5M2``.
        both: else nothing is transposed, and what stands for it is empty.
    """
    (values, transposed), (m, k) = _pair(tensor, dtype, both), tensor.shape
    amax = tensor.new_zeros(m + k, dtype=torch.int32)
    inverse, across = tensor.new_empty((m, 1), dtype=torch.float32), tensor.new_empty((k, 1), dtype=torch.float32)
    with torch.cuda.device(tensor.device):
        grid = _grid(tensor, _ROW_TILE)
        _amax_kernel[grid](tensor, amax, amax[m:], m, k, *_ROW_TILE, both, num_warps=_WARPS)
        _row_kernel[grid](
            tensor, amax, amax[m:], values, transposed, inverse, across, m, k, _FINITE_MAX[dtype], *_ROW_TILE, both,
            num_warps=_WARPS,
        )  # fmt: skip
    return values, transposed, inverse, across


@by_row.register_fake
def _(tensor: torch.Tensor, dtype: torch.dtype, both: bool) -> Four:
    (values, transposed), (m, k) = _pair(tensor, dtype, both), tensor.shape
    return (
        values,
        transposed,
        tensor.new_empty((m, 1), dtype=torch.float32),
        tensor.new_empty((k, 1), dtype=torch.float32),
    )


def _block_scales(tensor: torch.Tensor, squares: bool) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = tensor.shape
    if squares:
        shape = m // BLOCK, k // BLOCK
        return tensor.new_empty(shape, dtype=torch.float32), tensor.new_empty(shape[::-1], dtype=torch.float32)
    along, across = (
        tensor.new_empty((k // BLOCK, m), dtype=torch.float32),
        tensor.new_empty((m // BLOCK, k), dtype=torch.float32),
    )
    return along.t(), across.t()


@torch.library.custom_op("unifiedamp::float8_by_block", mutates_args=())
def by_block(tensor: torch.Tensor, dtype: torch.dtype, squares: bool) -> Four:
    """Return the matrix, its transposed copy, and inverse scales of both, one for each 1 x 128 values of a row.

    Args:
        tensor: shape (m, k), multiples of 128, row-major, on a CUDA device.
        dtype: ``E4M3`` or ``E5M2``.
        squares: one scale for each 128 x 128 values instead.
    """
    values, transposed = _pair(tensor, dtype)
    scales = _block_scales(tensor, squares)
    kernel = _square_kernel if squares else _block_kernel
    with torch.cuda.device(tensor.device):
        kernel[_grid(tensor, (BLOCK, BLOCK))](
            tensor, values, transposed, *scales, *tensor.shape, _FINITE_MAX[dtype], BLOCK, num_warps=_WARPS
        )
    return values, transposed, *scales


@by_block.register_fake
def _(tensor: torch.Tensor, dtype: torch.dtype, squares: bool) -> Four:
    return *_pair(tensor, dtype), *_block_scales(tensor, squares)
