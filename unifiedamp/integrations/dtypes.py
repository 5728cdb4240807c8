"""Dtypes of a policy, as Lightning and Accelerate have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..policy import Policy

_LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_MIXED = {"float16": "16-mixed", "bfloat16": "bf16-mixed", "float8": "bf16-mixed"}
_TRUE = {"float16": "16-true", "bfloat16": "bf16-true"}


def low_param_dtype(policy: Policy | None) -> torch.dtype | None:
    """Return the dtype of parameters where it has 16 bits."""
    return None if policy is None else _LOW.get(policy.param_dtype)


def precision_name(policy: Policy | None) -> str:
    """Return Lightning's name for a policy."""
    if policy is None:
        return "32-true"
    return _TRUE.get(policy.param_dtype) or _MIXED.get(policy.compute_dtype, "32-true")


def cast_floats(data: Any, dtype: torch.dtype) -> Any:
    """Return a batch with its floating-point tensors cast, in nested tuples, lists and mappings."""
    if isinstance(data, torch.Tensor):
        return data.to(dtype) if data.is_floating_point() else data
    if isinstance(data, Mapping):
        return _rebuilt(data, {key: cast_floats(value, dtype) for key, value in data.items()})
    if isinstance(data, (tuple, list)):
        items = [cast_floats(value, dtype) for value in data]
        return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
    return data


def _rebuilt(data: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        return type(data)(items)  # type: ignore[call-arg]  # most mappings take one
    except TypeError:
        return items


class DefaultDtype:
    """A context in which new floating-point tensors have a dtype, as in Lightning's 16-bit precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype, self._before = dtype, torch.get_default_dtype()

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self._before)
