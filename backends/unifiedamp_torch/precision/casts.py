"""Finding and casting the floating-point tensors in a module's inputs and outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from unifiedamp.backend import errors

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NARROWED = frozenset(DTYPES.values())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in ``value``: itself, or those in nested tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return ``value`` with each float16, bfloat16 or float32 tensor in it as ``dtype``.

    Tensors of other dtypes (integers, float64, complex) are unchanged, and so is what is not a tensor, tuple, list or
    mapping. A container is rebuilt, with the same type, only if something in it changed.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _NARROWED else value
    if isinstance(value, Mapping):
        return _cast_mapping(value, dtype)
    if isinstance(value, (tuple, list)):
        items = [cast(item, dtype) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _cast_mapping(value: Mapping[Any, Any], dtype: torch.dtype) -> Any:
    changed = {key: new for key, old in value.items() if (new := cast(old, dtype)) is not old}
    if not changed:
        return value
    # A shallow copy keeps the class and the order (OrderedDict, a transformers ModelOutput).
    result: Any = copy.copy(value)
    for key, new in changed.items():
        result[key] = new
    return result


class NotScriptable(errors.UnsupportedError, AttributeError):
    """Raised where TorchScript asks for a hook's source by its name; others find no such attribute."""


class Hook:
    """A hook of a model; a plain object, so that models pickle."""

    @property
    def __name__(self) -> str:
        """TorchScript alone needs it.

        Raises:
            NotScriptable: always.
        """
        raise NotScriptable(
            "torch.jit.script cannot compile the casts of a prepared or converted model: script the module before "
            "amp.prepare or after amp.close(), or use torch.jit.trace or torch.export"
        )


class OutputCast(Hook):
    """A forward hook that returns a model's outputs in the policy's output dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        """Return the outputs cast; None where they need no cast."""
        if type(output) is torch.Tensor:
            return None if output.dtype is self.dtype or output.dtype not in _NARROWED else output.to(self.dtype)
        return cast(output, self.dtype)


class InputCast(Hook):
    """A forward pre-hook that casts a model's inputs to the dtype of its parameters."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Return the inputs cast."""
        return cast(args, self.dtype), cast(kwargs, self.dtype)
