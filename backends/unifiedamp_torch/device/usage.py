"""What a session uses of its device: memory, and the kernels that it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SAID_BY_CPU = ("can't allocate memory", "not enough memory")
"""What the RuntimeError of torch's CPU allocator says."""


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that torch's CUDA allocator has handed out; None elsewhere."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def out_of_memory(error: BaseException) -> bool:
    """Tell whether torch ran out of memory."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAID_BY_CPU)


def kernel_times(run: Callable[[], Any]) -> dict[str, float]:
    """Return name → seconds of the CUDA kernels that ``run`` started."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return {
        event.key: event.self_device_time_total * 1e-6
        for event in profile.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA
    }
