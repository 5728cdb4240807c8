"""The three matrix products of a linear layer in float8, each operand scaled by its present largest magnitude.

Activations and weights are float8 e4m3 (finite maximum 448), gradients e5m2 (57344), as in Micikevicius et al., "FP8
Formats for Deep Learning" (arXiv:2209.05433). Each tensor has one scale, computed anew each time ("current" or
"just in time" scaling, as in NVIDIA's Transformer Engine and torchao's tensorwise recipe)::

    scale = float8_max / amax(|tensor|)
    float8 tensor = round_to_float8(float32(tensor) * scale)
    product = (float8 a @ float8 b, sums in float32) / (scale_a * scale_b)

A tensor of zeros keeps a finite scale. An inf or nan in a tensor makes its amax inf or nan, hence every element of its
product nan: a saturating cast cannot hide it from the finite check.

Everything is plain torch operations on the device: no value is read, so that dynamo traces it without a break, Inductor
fuses the casts with adjacent operations, and a CUDA graph captures it.
"""

from __future__ import annotations

from typing import Any

import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Each of the three sizes of the hardware's product is a multiple of this."""
LARGEST_SCALE = 2.0**126
"""The scale of a tensor of zeros; its inverse is still a normal float32 number."""
_TAKEN = (torch.float32, torch.bfloat16, torch.float16)


def quantized(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``tensor`` in float8, contiguous, and its inverse scale, float32 of shape (1,)."""
    tensor = tensor.contiguous()
    amax = tensor.abs().amax().float().reshape(1)
    scale = (torch.finfo(dtype).max / amax).clamp(max=LARGEST_SCALE)
    return (tensor * scale).to(dtype), scale.reciprocal()


def product(
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
    emulate: bool,
    bias: torch.Tensor | None = None,
    fast: bool = False,
) -> torch.Tensor:
    """Return ``a @ b (+ bias)`` in ``dtype``.

    Args:
        a: float8 of shape (m, k), row-major, and its inverse scale.
        b: float8 of shape (k, n), column-major, and its inverse scale.
        dtype: of the result; the bias has it too.
        emulate: multiply in float32, on any device; it holds every product of two float8 numbers exactly.
        bias: shape (n,), or None.
        fast: let the hardware sum in fewer bits (``use_fast_accum``).
    """
    (left, left_inverse), (right, right_inverse) = a, b
    if not emulate:
        return torch._scaled_mm(
            left, right, scale_a=left_inverse, scale_b=right_inverse, bias=bias, out_dtype=dtype, use_fast_accum=fast
        )
    out = (left.float() @ right.float()) * left_inverse * right_inverse
    return (out if bias is None else out + bias.float()).to(dtype)


def column_major(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same matrix with its columns contiguous."""
    return tensor.t().contiguous().t()


class Linear8(torch.autograd.Function):
    """``x @ weight.t() + bias`` and its two gradients in float8. Not differentiable twice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, emulate: bool) -> Any:
        """Return bfloat16 of shape (rows, outputs).

        Args:
            ctx: autograd's.
            x: shape (rows, inputs), all multiples of :data:`MULTIPLE`.
            weight: shape (outputs, inputs).
            bias: bfloat16 of shape (outputs,), or None.
            emulate: see :func:`product`.
        """
        x8, x_inverse = quantized(x, E4M3)
        w8, w_inverse = quantized(weight, E4M3)
        ctx.save_for_backward(x8, x_inverse, w8, w_inverse)
        ctx.emulate, ctx.dtypes = emulate, (x.dtype, weight.dtype)
        return product((x8, x_inverse), (w8.t(), w_inverse), torch.bfloat16, emulate, bias, fast=True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the gradients of x, weight and bias."""
        x8, x_inverse, w8, w_inverse = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        g8, g_inverse = quantized(grad, E5M2)
        dx = dw = db = None
        if wants_x:
            dx = product((g8, g_inverse), (column_major(w8), w_inverse), x_dtype, ctx.emulate)
        if wants_weight:
            g8_t = g8.t().contiguous()
            dw = product((g8_t, g_inverse), (column_major(x8), x_inverse), w_dtype, ctx.emulate)
        if wants_bias:
            db = grad.sum(0)
        return dx, dw, db, None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, emulate: bool) -> torch.Tensor:
    """Return the linear layer's bfloat16 output of shape (…, outputs) for x of shape (…, inputs), not empty.

    Rows of zeros fill x up to a multiple of :data:`MULTIPLE`, which the gradient of the weight needs.
    """
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    missing = -rows % MULTIPLE
    if missing:
        flat = torch.nn.functional.pad(flat, (0, 0, 0, missing))
    low_bias = None if bias is None else bias.to(torch.bfloat16)
    out = Linear8.apply(flat, weight, low_bias, emulate)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if missing:
        out = out[:rows]
    return out.reshape(*x.shape[:-1], weight.shape[0])  # type: ignore[no-any-return]  # as above


def takes(x: Any) -> bool:
    """Return whether an input can run in float8: a float32, bfloat16 or float16 tensor that is not empty."""
    return isinstance(x, torch.Tensor) and x.dtype in _TAKEN and x.numel() > 0
