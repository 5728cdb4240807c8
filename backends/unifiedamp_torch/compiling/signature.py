"""The arguments of a captured step: its tensors, which are copied in, and everything else, which is fixed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Same:
    """An argument that a capture depends on by identity (a model, a configuration object)."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return type(self.value).__name__


def split(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[torch.Tensor], Hashable]:
    """Return the tensors among the arguments, and a hashable description of all arguments."""
    tensors: list[torch.Tensor] = []
    described = tuple([_describe(value, tensors) for value in args])
    if not kwargs:
        return tensors, described
    return tensors, (described, tuple([(name, _describe(value, tensors)) for name, value in kwargs.items()]))


def _describe(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return (value.shape, value.dtype, value.device, value.stride(), value.requires_grad)
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if type(value) in (list, tuple):
        return (type(value), *[_describe(each, tensors) for each in value])
    if type(value) is dict:
        return (dict, *[(key, _describe(each, tensors)) for key, each in value.items()])
    return Same(value)


def fill(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return ``value`` with its tensors, in the order of :func:`split`, replaced by those of an iterator."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if type(value) in (list, tuple):
        return type(value)([fill(each, tensors) for each in value])
    if type(value) is dict:
        return {key: fill(each, tensors) for key, each in value.items()}
    return value


def difference(before: Any, now: Any) -> str:
    """Describe the first difference of two descriptions of :func:`split`."""
    if type(before) is not type(now) or not isinstance(now, tuple):
        return f"{_words(before)} became {_words(now)}"
    if _is_tensor(before) and _is_tensor(now):
        return f"a tensor of {_words(before)} became one of {_words(now)}"
    if len(before) != len(now):
        return f"{len(before)} arguments became {len(now)}"
    for index, (one, other) in enumerate(zip(before, now, strict=True)):
        if one != other:
            inner = difference(one, other)
            return inner if isinstance(one, type) or not isinstance(one, tuple) else f"argument {index}: {inner}"
    return "nothing that can be seen"


def _is_tensor(described: Any) -> bool:
    return isinstance(described, tuple) and bool(described) and isinstance(described[0], torch.Size)


def _words(described: Any) -> str:
    if _is_tensor(described):
        return f"shape {tuple(described[0])}, {described[1]}, {described[2]}"
    return repr(described)
