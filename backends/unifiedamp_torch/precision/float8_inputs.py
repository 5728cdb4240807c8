"""Which layers are given the same inputs, as query, key and value are: each input is then cast to float8 once."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from typing import Generic, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

Layer = TypeVar("Layer", bound=Hashable)


class FirstInputs(Generic[Layer]):
    """The inputs of layers in the calls of their first iteration."""

    def __init__(self) -> None:
        # Input → its number, and the version that has it.
        self._numbers: MutableMapping[torch.Tensor, tuple[int, int]] = WeakIdKeyDictionary()
        self._calls: dict[Layer, list[int]] = {}
        self._count = 0

    def note(self, layer: Layer, tensor: torch.Tensor) -> None:
        """Note a call of a layer; not while dynamo traces it, which may stand for many calls."""
        if torch.compiler.is_compiling():
            return
        version = 0 if tensor.is_inference() else tensor._version
        number, known = self._numbers.get(tensor, (0, -1))
        if known != version:
            self._count += 1
            number = self._count
            self._numbers[tensor] = number, version
        self._calls.setdefault(layer, []).append(number)

    def leaders(self) -> dict[Layer, Layer]:
        """Return layer → the first layer that was called with the same inputs, of those that are not the first."""
        first: dict[tuple[int, ...], Layer] = {}
        found = {layer: first.setdefault(tuple(calls), layer) for layer, calls in self._calls.items()}
        return {layer: leader for layer, leader in found.items() if leader is not layer}

    def clear(self) -> None:
        """Forget all calls."""
        self._numbers.clear()
        self._calls.clear()
