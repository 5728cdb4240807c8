"""A weight that ``fully_shard`` gathered in float8: a tensor of the parameter's dtype, whose numbers are float8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten
_SAME_NUMBERS = {aten.detach.default, aten.alias.default}


class GatheredWeight(torch.Tensor):
    """The weight of a float8 layer while it is whole. Other operations than the layer's see the numbers scaled back.

    Args:
        low: float8 of shape (outputs, inputs), row-major.
        unscale: the inverse scale, float32 of shape (1,).
        dtype: what the tensor stands for.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as in torch's docs
    low: torch.Tensor
    unscale: torch.Tensor

    @staticmethod
    def __new__(cls, low: torch.Tensor, unscale: torch.Tensor, dtype: torch.dtype) -> GatheredWeight:
        """Return a wrapper around ``low`` and ``unscale``, which hold its data."""
        made = torch.Tensor._make_wrapper_subclass(cls, low.shape, dtype=dtype, device=low.device)
        made.low, made.unscale = low, unscale
        return made

    def __repr__(self) -> str:  # type: ignore[override]  # torch leaves it untyped
        """Return a text that reads no numbers: compilers print tensors that have none."""
        return f"GatheredWeight({tuple(self.shape)}, {self.dtype})"

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        return ["low", "unscale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, torch.Tensor], dtype: torch.dtype, _size: Sequence[int], _stride: Sequence[int]
    ) -> GatheredWeight:
        return GatheredWeight(inner["low"], inner["unscale"], dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch leaves it untyped
        cls, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation on what the numbers stand for, except those that give the same tensor, or its first rows."""
        first = args[0] if args else None
        if isinstance(first, GatheredWeight):
            if func in _SAME_NUMBERS:
                return cls(func(first.low), first.unscale, first.dtype)
            if func is aten.as_strided.default and len(args[1]) == 2 and args[2][0] == first.shape[1]:
                return cls(torch.as_strided(first.low, *args[1:]), first.unscale, first.dtype)
        args, kwargs = torch.utils._pytree.tree_map_only(GatheredWeight, cls._unscaled, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _unscaled(self) -> torch.Tensor:
        return (self.low.float() * self.unscale).to(self.dtype)
