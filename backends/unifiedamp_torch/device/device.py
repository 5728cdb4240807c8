"""The role of the session's device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from unifiedamp.backend import Device

from . import arrays, memory, prefetch
from .kinds import traits


class TorchDevice(Device):
    """A torch device.

    Args:
        native: the device.
        scale_on_device: keep the loss scale there, even where reading it would not synchronize.
    """

    def __init__(self, native: torch.device, scale_on_device: bool = False) -> None:
        self.native = native
        self.name = str(native)
        self.reads_without_sync = traits(native).reads_without_sync and not scale_on_device

    def to_native(self, array: Any, dtype: str | None = None) -> torch.Tensor:
        return arrays.to_native(array, self.native, dtype)

    def to_numpy(self, tensor: Any) -> Any:
        return arrays.to_numpy(tensor)

    def means(self, tensors: Sequence[Any]) -> list[float]:
        scalars = all(isinstance(each, torch.Tensor) and not each.dim() for each in tensors)
        if scalars and len({(each.dtype, each.device, type(each)) for each in tensors}) == 1:
            return list(map(float, self.to_numpy(torch.stack(list(tensors)))))
        return super().means(tensors)

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        return prefetch.ahead(batches, size, self.native)

    def peak_memory(self) -> int | None:
        return memory.peak_memory(self.native)

    def out_of_memory(self, error: BaseException) -> bool:
        return memory.out_of_memory(error)
