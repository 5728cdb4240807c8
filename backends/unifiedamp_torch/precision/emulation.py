"""Emulated 16-bit products: operands and results rounded to a 16-bit dtype, the arithmetic between in float32.

Autocast's kernels of products, convolutions, attention and recurrent layers are replaced in regions of policies with
``emulate``. What other operations do on 16-bit tensors stays torch's own: they compute in float32 and round the result.
Where parameters have 16 bits, a region is one of autocast too, for its dispatch key alone: products of 16-bit tensors
are emulated in their dtype, and all that autocast casts otherwise runs as outside regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import FLOAT_FORMATS, OP_VOCABULARY, PlanRow, Policy

from .casts import tensors
from .rounding import rounded

EMULATE, EMULATE_16_BIT, KEEP = "emulate", "emulate 16-bit tensors", "keep"
"""Choices for an operation, besides those of ``op_overrides``: round to autocast's dtype, round what has 16 bits to its
own dtype, or run it as outside autocast."""

CHOICES = (EMULATE, EMULATE_16_BIT, KEEP)

PRODUCTS = ("matmul", "linear", "conv", "conv_transpose", "attention", "rnn")
"""Operations of the vocabulary that autocast runs in 16 bits."""

_FORMATS = {torch.float16: FLOAT_FORMATS["float16"], torch.bfloat16: FLOAT_FORMATS["bfloat16"]}
_TAKEN = (torch.float16, torch.bfloat16, torch.float32)


OTHERS = "others"
"""Beside the operations of the vocabulary: all others that autocast casts."""


def op_choices(policy: Policy, params: str | None = None) -> Mapping[str, str]:
    """Return operation → choice for a policy's regions: its ``op_overrides``, and the products that are emulated.

    Args:
        policy: of the regions.
        params: dtype of the session's parameters; None for the policy's.
    """
    if not policy.emulate:
        return policy.op_overrides
    if (params or policy.param_dtype) == policy.compute_dtype != "float32":
        return {**dict.fromkeys((*OP_VOCABULARY, OTHERS), KEEP), **dict.fromkeys(PRODUCTS, EMULATE_16_BIT)}
    kept = {op: choice for op, choice in policy.op_overrides.items() if op not in PRODUCTS or choice != "compute"}
    return {**dict.fromkeys(PRODUCTS, EMULATE), **kept}


def dtype_of(choice: str, arguments: Any, device_type: str) -> torch.dtype | None:
    """Return the 16-bit dtype that an operation is emulated in; None where it is not.

    Args:
        choice: one of :data:`CHOICES`.
        arguments: the operation's.
        device_type: "cpu", "cuda", ….
    """
    if choice == EMULATE:
        return torch.get_autocast_dtype(device_type)
    return None if choice == KEEP else _own_dtype(arguments, device_type)


def _own_dtype(arguments: Any, device_type: str) -> torch.dtype | None:
    """Return the 16-bit dtype that all floating-point tensors on the device have; None where they have another."""
    found = {
        each.dtype
        for each in tensors(arguments)
        if each.device.type == device_type and (each.is_floating_point() or each.is_complex())
    }
    return next(iter(found)) if len(found) == 1 and found <= _FORMATS.keys() else None


def run(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype, device_type: str) -> Any:
    """Return what ``operator`` gives in ``dtype`` (torch.float16 or torch.bfloat16), by float32 arithmetic.

    Floating-point tensors among the arguments are rounded, and so are the results; gradients are rounded where they
    arrive at the results and where they leave the operands. float64 stays as it is, as in autocast.
    """
    format = _FORMATS[dtype]

    def operand(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            taken = value.dtype in _TAKEN and value.device.type == device_type
            return rounded(value, format) if taken else value
        return type(value)(map(operand, value)) if isinstance(value, (tuple, list)) else value

    def result(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return rounded(value, format).to(dtype) if value.dtype is torch.float32 else value
        return type(value)(map(result, value)) if isinstance(value, (tuple, list)) else value

    return result(operator(*map(operand, args), **{name: operand(value) for name, value in kwargs.items()}))


def uses_autocast(policy: Policy, params: str | None = None) -> bool:
    """Return whether regions of a policy are regions of autocast; see :func:`op_choices` for the arguments."""
    return policy.compute_dtype != (params or policy.param_dtype) or (
        policy.emulate and policy.compute_dtype != "float32"
    )


def rows(policy: Policy) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``."""
    if not policy.emulate:
        return []
    note = "slower than the native dtype: for trying a format, not for production"
    if policy.compute_dtype == "float32" and not policy.layer_overrides:
        return [PlanRow("emulate", "true", "", "no effect", "everything computes in float32")]
    if not policy.is_mixed:
        note += "; torch.autocast is on, for the products alone"
    native = f"{', '.join(PRODUCTS)}: operands and results rounded to {policy.region_dtype}, computed in float32"
    return [PlanRow("emulate", "true", native, "emulated", note)]
