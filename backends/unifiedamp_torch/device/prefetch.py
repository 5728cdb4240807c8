"""Batches on the session's device ahead of the loop; on a GPU from pinned memory, on a dedicated stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from unifiedamp.backend import Prefetcher, convert_batch

from . import arrays
from .kinds import traits


def ahead(batches: Iterable[Any], size: int, device: torch.device) -> Prefetcher:
    """Return ``batches`` on ``device``, ``size`` of them ready ahead."""
    if not traits(device).copy_streams:
        return Prefetcher(
            batches, size, functools.partial(convert_batch, to_native=functools.partial(_moved, device=device))
        )
    copies = _Copies(device)
    return Prefetcher(batches, size, copies.start, copies.finish, copies.around)


def _moved(value: Any, device: torch.device) -> torch.Tensor:
    return _native(value, device).to(device, non_blocking=True)


def _native(value: Any, device: torch.device) -> torch.Tensor:
    return arrays.to_native(value.asnumpy() if hasattr(value, "asnumpy") else value, device)


class _Copies:
    """Copies from pinned memory on a stream beside the one that computes.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def around(self, work: Callable[[], None]) -> None:
        """Run the thread's work on the session's device; a new thread starts on device 0."""
        with torch.cuda.device(self._device):
            work()

    def start(self, batch: Any) -> tuple[Any, list[torch.Tensor], torch.cuda.Event]:
        """Start the copies of a batch; return it, its tensors, and the event that ends the copies."""
        tensors: list[torch.Tensor] = []

        def copy(value: Any) -> torch.Tensor:
            # A tensor that is on a GPU already is copied on this thread's current stream.
            host = _native(value, torch.device("cpu"))
            pinned = host if traits(host.device).asynchronous else host.pin_memory()
            tensors.append(pinned.to(self._device, non_blocking=True))
            return tensors[-1]

        with torch.cuda.stream(self._stream):
            made = convert_batch(batch, copy)
            there = self._stream.record_event()
        return made, tensors, there

    def finish(self, copied: tuple[Any, list[torch.Tensor], torch.cuda.Event]) -> Any:
        """Make the computing stream wait for the copies, and keep their memory until it has read them."""
        made, tensors, there = copied
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(there)
        for tensor in tensors:
            tensor.record_stream(computing)
        return made
