"""The three matrix products of a linear layer, each in float8 or bfloat16, by one of the recipes of ``Policy.recipe``.

Inputs and weights are float8 e4m3 (finite maximum 448). Gradients are e5m2 (57344) where a tensor has one scale, as in
Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv:2209.05433), and e4m3 where scales are finer, as in
torchao's rowwise recipe and DeepSeek-V3 (arXiv:2412.19437). With one scale per tensor, from its present largest
magnitude ("current" or "just in time" scaling in NVIDIA's Transformer Engine, torchao's tensorwise recipe)::

    scale = float8_max / amax(|tensor|)
    float8 tensor = round_to_float8(float32(tensor) * scale)
    product = (float8 a @ float8 b, sums in float32) / (scale_a * scale_b)

Everything is plain torch operations on the device: no value is read, so that dynamo traces it without a break, Inductor
fuses the casts with adjacent operations, and a CUDA graph captures it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from unifiedamp.backend import BLOCK_FORMATS

from . import float8_casts as casts
from .float8_casts import E4M3, E5M2, Scaled, cast
from .float8_products import product

_TAKEN = (torch.float32, torch.bfloat16, torch.float16)


class How(NamedTuple):
    """How a layer computes.

    Attributes:
        scaling: what has one scale: a constant of ``float8_casts``, or the block format of all operands. With
            ``BLOCKS``, weights have ``SQUARES``.
        fprop, dgrad, wgrad: whether the product runs in float8; else in bfloat16.
        kernels: see ``float8_casts.cast``; an operand is then cast with its transposed copy at once.
    """

    scaling: str = casts.TENSOR
    fprop: bool = True
    dgrad: bool = True
    wgrad: bool = True
    kernels: bool = False

    @property
    def multiple(self) -> int:
        """What the sizes of its products are multiples of: 16 for the hardware, the size of blocks."""
        if self.scaling in BLOCK_FORMATS:
            return BLOCK_FORMATS[self.scaling].size
        return casts.BLOCK if self.scaling == casts.BLOCKS else 16

    @property
    def of_weights(self) -> str:
        """The scaling of weights."""
        return casts.SQUARES if self.scaling == casts.BLOCKS else self.scaling

    @property
    def whole_weight(self) -> bool:
        """Whether weights have one scale, and both products with them run in float8."""
        return self.scaling == casts.TENSOR and self.fprop and self.dgrad

    @property
    def of_gradients(self) -> torch.dtype:
        """The float8 dtype of gradients."""
        return E5M2 if self.scaling == casts.TENSOR else E4M3

    @property
    def fast_gradients(self) -> bool:
        """Whether gradient products sum in fewer bits: torch's kernels for scales of rows are only fast so."""
        return self.scaling == casts.ROW


class Scales(NamedTuple):
    """Of delayed scaling: scales known beforehand, and where largest magnitudes are kept; float32 of shape (1,).

    Attributes:
        x, weight, grad: the scale of each operand; None: from its present largest magnitude.
        x_amax, weight_amax, grad_amax: raised to the largest magnitude seen; None: not kept.
    """

    x: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    grad: torch.Tensor | None = None
    x_amax: torch.Tensor | None = None
    weight_amax: torch.Tensor | None = None
    grad_amax: torch.Tensor | None = None


TENSORWISE, UNKNOWN = How(), Scales()
_NONE = (None, None)


class Linear8(torch.autograd.Function):
    """``x @ weight.t() + bias`` and its two gradients. Not differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        how: How,
        emulate: bool,
        wants: tuple[bool, bool],
        *known_tensors: torch.Tensor | None,
    ) -> Any:
        """Return bfloat16 of shape (rows, outputs).

        Args:
            ctx: autograd's.
            x: shape (rows, inputs), all multiples of ``how.multiple``.
            weight: shape (outputs, inputs).
            bias: bfloat16 of shape (outputs,), or None.
            how: which products, and their scales.
            emulate: see ``float8_products.product``.
            wants: whether gradients of x and of weight will be asked for.
            known_tensors: the fields of :class:`Scales`, then the weight and its transposed copy in float8, each values
                and inverse scale, where they were cast before.
        """
        known = Scales(*known_tensors[:6])
        weight_rows, weight_transposed = _scaled(*known_tensors[6:8]), _scaled(*known_tensors[8:])
        wants_x, wants_weight = wants
        turns = how.kernels or not casts.same_transposed(how.scaling) or not how.fprop
        x8 = None
        if how.fprop or (how.wgrad and wants_weight):
            x8 = cast(
                x, E4M3, how.scaling,
                rows=how.fprop, transposed=turns and how.wgrad and wants_weight, scale=known.x, kernels=how.kernels,
            )  # fmt: skip
            keep(known.x_amax, x8.amax)
        if weight_rows is None and weight_transposed is None and (how.fprop or (how.dgrad and wants_x)):
            turns_weight = how.kernels or not casts.same_transposed(how.of_weights) or not how.fprop
            cast_weight = cast(
                weight, E4M3, how.of_weights,
                rows=how.fprop, transposed=turns_weight and how.dgrad and wants_x, scale=known.weight,
                kernels=how.kernels,
            )  # fmt: skip
            weight_rows, weight_transposed = cast_weight.rows, cast_weight.transposed
            keep(known.weight_amax, cast_weight.amax)
        ctx.how, ctx.emulate, ctx.dtypes = how, emulate, (x.dtype, weight.dtype)
        low_x = x.bfloat16() if wants_weight and not how.wgrad else None
        of_x = _saved(low_x, None if x8 is None else x8.rows, None if x8 is None else x8.transposed)
        of_weight = _saved(None if how.dgrad else weight, weight_rows, weight_transposed)
        ctx.turned = of_x[2], of_weight[2]
        ctx.save_for_backward(*of_x[:2], *of_weight[:2])
        # Not saved: autograd refuses saved tensors that were written to, and each call of the layer writes to the amax.
        ctx.of_gradient = known.grad, known.grad_amax
        if not how.fprop:
            return torch.nn.functional.linear(x.bfloat16(), weight.bfloat16(), bias)
        assert x8 is not None
        assert x8.rows is not None
        assert weight_rows is not None
        return product(x8.rows, weight_rows, how.scaling, torch.bfloat16, emulate, bias, fast=True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the gradients of x, weight and bias."""
        x, x_inverse, weight, weight_inverse = ctx.saved_tensors
        how, (x_dtype, weight_dtype), (scale, amax) = ctx.how, ctx.dtypes, ctx.of_gradient
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        rows, transposed = how.dgrad and wants_x, how.wgrad and wants_weight
        g8 = None
        if rows or transposed:
            g8 = cast(
                grad, how.of_gradients, how.scaling,
                rows=rows, transposed=transposed, scale=scale, kernels=how.kernels,
            )  # fmt: skip
            keep(amax, g8.amax)
        dx = dw = db = None
        if wants_x and g8 is not None and g8.rows is not None:
            turned = _turned(weight, weight_inverse, ctx.turned[1])
            # In bfloat16, as autocast's own backward pass has it: wider results take longer to write and to add.
            dx = product(g8.rows, turned, how.scaling, torch.bfloat16, ctx.emulate, fast=how.fast_gradients)
            dx = dx if x_dtype is torch.bfloat16 else dx.to(x_dtype)  # see ``product``
        elif wants_x:
            dx = (grad @ weight.bfloat16()).to(x_dtype)
        if wants_weight and g8 is not None and g8.transposed is not None:
            turned = _turned(x, x_inverse, ctx.turned[0])
            dw = product(g8.transposed, turned, how.scaling, weight_dtype, ctx.emulate, fast=how.fast_gradients)
        elif wants_weight:
            dw = (grad.t() @ x).to(weight_dtype)
        if wants_bias:
            db = grad.sum(0)
        return dx, dw, db, *[None] * 13


def _saved(
    plain: torch.Tensor | None, rows: Scaled | None, transposed: Scaled | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    """Return what a gradient product needs of the other operand: values, inverse scales, whether it is transposed.

    Args:
        plain: the operand where that product runs in bfloat16.
        rows, transposed: the operand in float8, where there is one.
    """
    kept = rows if transposed is None else transposed
    if plain is not None or kept is None:
        return plain, None, False
    return kept.values, kept.inverse, transposed is not None


def _scaled(values: torch.Tensor | None, inverse: torch.Tensor | None) -> Scaled | None:
    return None if values is None or inverse is None else Scaled(values, inverse)


def _turned(values: torch.Tensor, inverse: torch.Tensor, already: bool) -> Scaled:
    matrix = Scaled(values, inverse)
    return matrix if already else casts.transpose(matrix)


def keep(buffer: torch.Tensor | None, amax: torch.Tensor | None) -> None:
    """Raise what is kept to a largest magnitude; an inf or nan stays."""
    if buffer is not None and amax is not None:
        buffer.copy_(torch.maximum(buffer, amax))


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    emulate: bool,
    how: How = TENSORWISE,
    scales: Scales = UNKNOWN,
    weight_rows: Scaled | None = None,
    weight_transposed: Scaled | None = None,
) -> torch.Tensor:
    """Return the linear layer's bfloat16 output of shape (…, outputs) for x of shape (…, inputs), not empty.

    Rows of zeros fill x up to a multiple of ``how.multiple``, which the gradient of the weight needs.
    """
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    missing = -rows % how.multiple
    if missing:
        flat = torch.nn.functional.pad(flat, (0, 0, 0, missing))
    low_bias = None if bias is None else bias.to(torch.bfloat16)
    trains = torch.is_grad_enabled()
    wants = trains and x.requires_grad, trains and weight.requires_grad
    out = Linear8.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        flat, weight, low_bias, how, emulate, wants, *scales, *(weight_rows or _NONE), *(weight_transposed or _NONE)
    )
    if missing:
        out = out[:rows]
    return out.reshape(*x.shape[:-1], weight.shape[0])  # type: ignore[no-any-return]  # as above


def takes(x: Any) -> bool:
    """Return whether an input can run in float8: a float32, bfloat16 or float16 tensor that is not empty."""
    return isinstance(x, torch.Tensor) and x.dtype in _TAKEN and x.numel() > 0
