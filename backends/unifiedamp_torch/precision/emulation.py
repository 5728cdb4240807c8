"""Emulated 16-bit products: operands and results rounded to the autocast dtype, the arithmetic between in float32.

Autocast's kernels of products, convolutions, attention and recurrent layers are replaced in regions of policies with
``emulate``. What other operations do on 16-bit tensors stays torch's own: they compute in float32 and round the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import FLOAT_FORMATS, PlanRow, Policy

from .rounding import rounded

EMULATE = "emulate"
"""The choice for an operation, besides those of ``op_overrides``."""

PRODUCTS = ("matmul", "linear", "conv", "conv_transpose", "attention", "rnn")
"""Operations of the vocabulary that autocast runs in 16 bits."""

_FORMATS = {torch.float16: FLOAT_FORMATS["float16"], torch.bfloat16: FLOAT_FORMATS["bfloat16"]}
_TAKEN = (torch.float16, torch.bfloat16, torch.float32)


def op_choices(policy: Policy) -> Mapping[str, str]:
    """Return operation → choice for a policy's regions: its ``op_overrides``, and the products that are emulated."""
    if not policy.emulate:
        return policy.op_overrides
    kept = {op: choice for op, choice in policy.op_overrides.items() if op not in PRODUCTS or choice != "compute"}
    return {**dict.fromkeys(PRODUCTS, EMULATE), **kept}


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


def rows(policy: Policy) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``."""
    if not policy.emulate:
        return []
    note = "slower than the native dtype: for trying a format, not for production"
    if policy.compute_dtype == "float32" and not policy.layer_overrides:
        return [PlanRow("emulate", "true", "", "no effect", "everything computes in float32")]
    native = f"{', '.join(PRODUCTS)}: operands and results rounded to {policy.region_dtype}, computed in float32"
    return [PlanRow("emulate", "true", native, "emulated", note)]
