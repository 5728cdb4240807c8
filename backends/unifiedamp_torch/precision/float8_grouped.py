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


Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


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


class Wants(NamedTuple):
    """Which gradients will be asked for."""

    x: bool
    weight: bool


def grouped(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, how: How, emulate: bool) -> torch.Tensor:
    """Return ``x[rows of i] @ weight[i]``, bfloat16 of shape (rows, outputs).

    Args:
        x: shape (rows, inputs).
        weight: shape (groups, inputs, outputs); inputs and outputs are multiples of 16.
        offs: int32 of shape (groups,), rising; rows from ``offs[-1]`` on are in no group, and their results undefined.
        how: which products run in float8; its scaling is that of rows.
        emulate: multiply in bfloat16, which is exact, and sum in float32; on any device.
    """
    trains = torch.is_grad_enabled()
    wants = Wants(trains and x.requires_grad, trains and weight.requires_grad)
    out: torch.Tensor = Grouped8.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        x, weight, offs, how, emulate, wants
    )
    return out


class Grouped8(torch.autograd.Function):
    """The product and its two gradients. Not differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, how: How, emulate: bool, wants: Wants
    ) -> torch.Tensor:
        """See :func:`grouped`; ``wants``: the gradients that will be asked for."""
        layout = Layout.of(len(x), offs)
        sums = how.wgrad and wants.weight
        x_rows, x_columns = layout.cast(x, how, how.fprop, sums)
        forward, backward = _cast_weights(weight, how, how.fprop, how.dgrad and wants.x)
        ctx.how, ctx.emulate, ctx.dtypes = how, emulate, (x.dtype, weight.dtype)
        ctx.turned = weight.mT.is_contiguous()  # the gradient of the weight then has the same layout
        plain = x.bfloat16() if wants.weight and not how.wgrad else None, None
        of_weight = backward or (None if how.dgrad else weight, None)
        ctx.save_for_backward(*(x_columns or plain), *of_weight, offs, *layout)
        if forward is None or x_rows is None:
            return _in_bfloat16(x, weight, offs)
        return _product(x_rows, forward, offs, emulate)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the gradients of x and weight."""
        x, x_inverse, weight, weight_inverse, offs, *layout = ctx.saved_tensors
        how, (x_dtype, weight_dtype), layout = ctx.how, ctx.dtypes, Layout(*layout)
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        rows, columns = layout.cast(grad, how, how.dgrad and wants_x, how.wgrad and wants_weight)
        dx = dw = None
        if rows is not None:
            dx = _product(rows, Scaled(weight, weight_inverse), offs, ctx.emulate)
        elif wants_x:
            dx = _in_bfloat16(grad, weight.mT, offs)
        if columns is not None:
            pair = (columns, Scaled(x, x_inverse)) if ctx.turned else (Scaled(x, x_inverse), columns)
            dw = _sums(*pair, layout.bounds[1:], ctx.emulate)
        elif wants_weight:
            low = grad.contiguous()
            dw = _in_bfloat16(low.t(), x, offs) if ctx.turned else _in_bfloat16(x.t(), low, offs)
        if dw is not None and ctx.turned:
            dw = dw.mT
        return _as(dx, x_dtype), _as(dw, weight_dtype), None, None, None, None


def _as(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Cast what has another dtype; see ``float8_products.product`` on casts that change nothing."""
    return tensor if tensor is None or tensor.dtype is dtype else tensor.to(dtype)


# -- casts -------------------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Where rows go when the groups are padded.

    Attributes:
        source: int32 of shape (padded rows,): the row that goes there; the number of rows for none.
        group: int32 of shape (padded rows,): its group; the number of groups after the last.
        bounds: int32 of shape (groups + 1,): where the padded groups begin and end.
    """

    source: torch.Tensor
    group: torch.Tensor
    bounds: torch.Tensor

    @classmethod
    def of(cls, rows: int, offs: torch.Tensor) -> Layout:
        """Return the layout of so many rows; there are as many padded rows as any ``offs`` needs."""
        zero = offs.new_zeros(1)
        starts = torch.cat([zero, offs])
        padded = ((torch.diff(starts) + MULTIPLE - 1) // MULTIPLE).clamp(min=1) * MULTIPLE
        bounds = torch.cat([zero, padded.cumsum(0, dtype=offs.dtype)])
        length = -(-rows // MULTIPLE) * MULTIPLE + MULTIPLE * len(offs)
        places = torch.arange(length, device=offs.device, dtype=offs.dtype)
        group = _groups_of(places, bounds[1:])
        row = places - bounds[group] + starts[group]
        return cls(torch.where(row < torch.cat([offs, zero])[group], row, rows), group, bounds)

    def cast(self, matrix: torch.Tensor, how: How, rows: bool, columns: bool) -> tuple[Scaled | None, Scaled | None]:
        """Return a matrix as two operands.

        Args:
            matrix: shape (rows, k).
            how: whether kernels are used.
            rows: return it as it is, of shape (rows, k), with inverse scales of shape (rows, 1).
            columns: return it transposed, of shape (k, padded rows), with inverse scales of shape (groups, k).
        """
        if not columns:
            return _rows(matrix, how) if rows else None, None
        if not how.kernels:
            return _rows(matrix, how) if rows else None, self._columns(matrix)
        length = len(self.source)
        values, inverse, turned, across = _by_kernel(matrix, self, 0, length, rows)
        return Scaled(values, inverse) if rows else None, Scaled(turned.view(-1, length), across)

    def _columns(self, matrix: torch.Tensor) -> Scaled:
        k, groups = matrix.shape[1], len(self.bounds) - 1
        padded = torch.cat([matrix, matrix.new_zeros(1, k)])[self.source]
        each = self.group.long()[:, None].expand(-1, k)
        amax = padded.new_zeros(groups + 1, k).scatter_reduce(0, each, padded.abs(), "amax")
        scale = casts.row_scale(amax, E4M3)
        low = (padded * scale[self.group]).to(E4M3)
        return Scaled(low.t().contiguous(), scale[:groups].reciprocal())


def _groups_of(places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return how many groups end before each place. Inductor's ``torch.searchsorted`` reads a slice from its beginning
    (torch 2.11, CUDA).
    """
    return (places[:, None] >= ends).sum(1, dtype=torch.int32)


def _cast_weights(weight: torch.Tensor, how: How, forward: bool, backward: bool) -> tuple[Scaled | None, Scaled | None]:
    """Return the operands of out and of dx: values of shape (groups, n, k), inverse scales of shape (groups, n).

    Args:
        weight: shape (groups, inputs, outputs), in any layout.
        how: whether kernels are used.
        forward, backward: which are returned.
    """
    if how.kernels and forward and backward:
        turned = weight.mT.is_contiguous()
        one, other = _both_by_kernel(weight.mT if turned else weight.contiguous())
        return (one, other) if turned else (other, one)
    return _matrices(weight.mT, how) if forward else None, _matrices(weight, how) if backward else None


def _both_by_kernel(weight: torch.Tensor) -> tuple[Scaled, Scaled]:
    """Return contiguous matrices of shape (groups, n, k) with scales of rows, and so their transposed copies."""
    groups, n, k = weight.shape
    places = torch.arange(groups * n, device=weight.device, dtype=torch.int32)
    layout = Layout(places, places // n, torch.arange(groups + 1, device=weight.device, dtype=torch.int32) * n)
    values, inverse, turned, across = _by_kernel(weight.view(groups * n, k), layout, n * k, n, True)
    return Scaled(values.view(groups, n, k), inverse.view(groups, n)), Scaled(turned.view(groups, k, n), across)


def _by_kernel(matrix: torch.Tensor, layout: Layout, group_stride: int, col_stride: int, rows: bool) -> Four:
    from . import float8_grouped_kernels  # it needs Triton, which comes with torch where there is a GPU

    found: Four = float8_grouped_kernels.by_group(matrix.contiguous(), *layout, group_stride, col_stride, rows)
    return found


def _matrices(weight: torch.Tensor, how: How) -> Scaled:
    groups, n, k = weight.shape
    values, inverse = _rows(weight.reshape(groups * n, k), how)
    return Scaled(values.reshape(groups, n, k), inverse.reshape(groups, n))


def _rows(matrix: torch.Tensor, how: How) -> Scaled:
    found = casts.cast(matrix, E4M3, casts.ROW, kernels=how.kernels).rows
    assert found is not None
    return found


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
    """Return ``a[:, columns of i] @ b[:, columns of i].t()`` of shape (groups, m, n), bfloat16; see ``Layout.cast``."""
    if emulate:
        return _in_bfloat16(_unscaled(a, ends), _unscaled(b, ends).t(), ends)
    return torch._scaled_grouped_mm(
        a.values, b.values.t(), a.inverse.flatten(), b.inverse.flatten(), ends,
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip


def _unscaled(matrix: Scaled, ends: torch.Tensor) -> torch.Tensor:
    values, inverse = matrix
    places = torch.arange(values.shape[1], device=ends.device, dtype=ends.dtype)
    group = _groups_of(places, ends).clamp(max=len(ends) - 1)
    return values.float() * inverse[group].t()


def _in_bfloat16(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Return the product in bfloat16, which holds a float8 number times a power of two exactly; sums are float32."""
    return torch._grouped_mm(a.bfloat16(), b.bfloat16(), offs)
