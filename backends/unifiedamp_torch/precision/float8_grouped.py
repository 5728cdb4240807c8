"""Grouped products in float8: ``torch.nn.functional.grouped_mm`` of mixtures of experts, with a scale per row.

Rows of x are sorted by group, and ``offs[i]`` is where the rows of group i end. The three products are::

    out[rows of i] = x[rows of i] @ weight[i]
    dx[rows of i]  = grad[rows of i] @ weight[i].t()
    dw[i]          = x[rows of i].t() @ grad[rows of i]

The operands are cast as those of a linear layer by recipe ``rowwise``; those of dw have a scale per group and column,
since it sums over the rows of a group. ``offs`` is not read from the device: for dw, each group gets a multiple of 16
rows, at least 16, in a buffer that is large enough for any ``offs``. What has no row is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import float8_casts as casts
from .float8 import How, takes
from .float8_casts import E4M3, Scaled

MULTIPLE = 16
"""What the kernels need sizes to be multiples of: of a row of a matrix, and of the groups of dw."""


_NAMES = {"self": "x", "input": "x", "mat_a": "x", "mat2": "weight", "mat_b": "weight"}


class Operands(NamedTuple):
    """The arguments of a grouped product."""

    x: Any
    weight: Any
    offs: Any = None
    bias: Any = None
    out_dtype: Any = None

    @classmethod
    def read(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Operands:
        """Return what ``torch.nn.functional.grouped_mm`` or ``torch._grouped_mm`` was called with."""
        return cls(*args, **{_NAMES.get(name, name): value for name, value in kwargs.items()})

    def suit(self) -> bool:
        """Return whether the product can run in float8: of groups of rows with a matrix for each group."""
        x, weight = self.x, self.weight
        if not (takes(x) and takes(weight) and x.dim() == 2 and weight.dim() == 3 and self.offs is not None):
            return False
        if self.bias is not None or self.out_dtype not in (None, torch.bfloat16):
            return False
        return all(size % MULTIPLE == 0 for size in weight.shape[1:])


def grouped(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, how: How, emulate: bool) -> torch.Tensor:
    """Return ``x[rows of i] @ weight[i]``, bfloat16 of shape (rows, outputs).

    Args:
        x: shape (rows, inputs).
        weight: shape (groups, inputs, outputs); inputs and outputs are multiples of 16.
        offs: int32 of shape (groups,), rising; rows from ``offs[-1]`` on are in no group, and their results undefined.
        how: which products run in float8; its scaling is that of rows.
        emulate: multiply in bfloat16, which is exact, and sum in float32; on any device.
    """
    wants_weight = torch.is_grad_enabled() and weight.requires_grad
    out: torch.Tensor = Grouped8.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        x, weight, offs, how, emulate, wants_weight
    )
    return out


class Grouped8(torch.autograd.Function):
    """The product and its two gradients. Not differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, how: How, emulate: bool, wants_weight: bool
    ) -> torch.Tensor:
        """See :func:`grouped`; ``wants_weight``: the gradient of the weight will be asked for."""
        ctx.how, ctx.emulate, ctx.dtypes, ctx.rows = how, emulate, (x.dtype, weight.dtype), len(x)
        of_x: tuple[torch.Tensor | None, ...] = (None, None)
        if wants_weight:
            of_x = _by_group(x, offs) if how.wgrad else (x.bfloat16(), None)
        ctx.save_for_backward(*of_x, weight, offs)
        if not how.fprop:
            return _in_bfloat16(x, weight, offs)
        return _product(_rows(x, how), _turned_weight(weight.mT, how), offs, emulate)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the gradients of x and weight."""
        x, x_inverse, weight, offs = ctx.saved_tensors
        how, (x_dtype, weight_dtype) = ctx.how, ctx.dtypes
        dx = dw = None
        if ctx.needs_input_grad[0]:
            if how.dgrad:
                dx = _product(_rows(grad, how), _turned_weight(weight, how), offs, ctx.emulate)
            else:
                dx = _in_bfloat16(grad, weight.mT, offs)
        if ctx.needs_input_grad[1]:
            turned = weight.mT.is_contiguous()  # its gradient then has the same layout
            if how.wgrad:
                pair = Scaled(x, x_inverse), Scaled(*_by_group(grad, offs))
                ends = _padded_ends(offs)
                dw = _sums(*pair[::-1], ends, ctx.emulate).mT if turned else _sums(*pair, ends, ctx.emulate)
            else:
                pair = x, grad.bfloat16().contiguous()
                dw = _in_bfloat16(pair[1].t(), pair[0], offs).mT if turned else _in_bfloat16(pair[0].t(), pair[1], offs)
        return _as(dx, x_dtype), _as(dw, weight_dtype), None, None, None, None


def _as(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Cast what has another dtype; see ``float8_products.product`` on casts that change nothing."""
    return tensor if tensor is None or tensor.dtype is dtype else tensor.to(dtype)


def _rows(matrix: torch.Tensor, how: How) -> Scaled:
    found = casts.cast(matrix, E4M3, casts.ROW, kernels=how.kernels).rows
    assert found is not None
    return found


def _turned_weight(weight: torch.Tensor, how: How) -> Scaled:
    """Return matrices of shape (groups, n, k), each row-major, and their inverse scales of shape (groups, n)."""
    groups, n, k = weight.shape
    values, inverse = _rows(weight.reshape(groups * n, k), how)
    return Scaled(values.reshape(groups, n, k), inverse.reshape(groups, n))


# -- operands of the gradient of the weight ----------------------------------------------------------------------------


def _padded_ends(offs: torch.Tensor) -> torch.Tensor:
    """Return where the groups end once each has a multiple of 16 rows, at least 16; int32 of shape (groups,)."""
    sizes = torch.diff(offs, prepend=offs.new_zeros(1))
    return ((sizes + MULTIPLE - 1) // MULTIPLE).clamp(min=1).mul(MULTIPLE).cumsum(0, dtype=torch.int32)


def _group_of(positions: int, ends: torch.Tensor) -> torch.Tensor:
    """Return the group of each row; the number of groups for those after the last."""
    return torch.searchsorted(ends, torch.arange(positions, device=ends.device, dtype=ends.dtype), right=True)


def _by_group(matrix: torch.Tensor, offs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the transposed matrix in float8, its groups padded, and inverse scales.

    Args:
        matrix: shape (rows, k).
        offs: where the groups end.

    Returns:
        ``E4M3`` of shape (k, at least rows + 16 * groups), row-major, and float32 of shape (groups, k).
    """
    (rows, k), groups = matrix.shape, len(offs)
    group = _group_of(rows, offs)
    each = group[:, None].expand(rows, k)
    amax = matrix.new_zeros(groups + 1, k).scatter_reduce(0, each, matrix.abs(), "amax")
    scale = casts.row_scale(amax, E4M3)
    low = (matrix * scale[group]).to(E4M3)
    length = -(-rows // MULTIPLE) * MULTIPLE + MULTIPLE * groups
    ends = _padded_ends(offs)
    shift = torch.cat([ends.new_zeros(1), ends]) - torch.cat([offs.new_zeros(1), offs])
    # Rows of no group go to the one past the end.
    target = torch.where(group < groups, torch.arange(rows, device=offs.device) + shift[group], length)
    padded = low.new_zeros(length + 1, k).view(torch.uint8).index_copy(0, target, low.view(torch.uint8))
    return padded[:length].view(E4M3).t().contiguous(), scale[:groups].reciprocal()


# -- products ----------------------------------------------------------------------------------------------------------


def _product(a: Scaled, b: Scaled, offs: torch.Tensor, emulate: bool) -> torch.Tensor:
    """Return ``a[rows of i] @ b[i].t()``, bfloat16.

    Args:
        a: shape (rows, k), a scale per row.
        b: shape (groups, n, k), scales of shape (groups, n).
        offs: where the groups end.
        emulate: see :func:`grouped`.
    """
    if emulate:
        left, right = a.values.float() * a.inverse, b.values.float() * b.inverse[..., None]
        return _in_bfloat16(left, right.mT, offs)
    return torch._scaled_grouped_mm(
        a.values, b.values.mT, a.inverse.flatten(), b.inverse, offs, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _sums(a: Scaled, b: Scaled, ends: torch.Tensor, emulate: bool) -> torch.Tensor:
    """Return ``a[:, columns of i] @ b[:, columns of i].t()`` of shape (groups, m, n), bfloat16; see :func:`_by_group`."""
    if emulate:
        return _in_bfloat16(_unscaled(a, ends), _unscaled(b, ends).t(), ends)
    return torch._scaled_grouped_mm(
        a.values, b.values.t(), a.inverse.flatten(), b.inverse.flatten(), ends,
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip


def _unscaled(matrix: Scaled, ends: torch.Tensor) -> torch.Tensor:
    values, inverse = matrix
    group = _group_of(values.shape[1], ends).clamp(max=len(ends) - 1)
    return values.float() * inverse[group].t()


def _in_bfloat16(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return the product of bfloat16 operands, which hold float8 numbers times powers of two exactly; sums are float32.
    """
    return torch._grouped_mm(a.bfloat16(), b.bfloat16(), offs)
