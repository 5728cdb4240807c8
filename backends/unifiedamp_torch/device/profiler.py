"""The role that times kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unifiedamp.backend import Profiler, Unsupported

from .kinds import traits


class TorchProfiler(Profiler):
    """Times CUDA kernels with ``torch.profiler``."""

    means = "torch.profiler"

    def kernel_times(self, run: Callable[[], object]) -> dict[str, float]:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            run()
            torch.cuda.synchronize()
        return {
            event.key: event.self_device_time_total * 1e-6
            for event in profile.key_averages()
            if event.device_type == torch._C._autograd.DeviceType.CUDA
        }


def profiler_for(device: torch.device) -> TorchProfiler | Unsupported:
    """Return the profiler of a device."""
    if traits(device).profiles_kernels:
        return TorchProfiler()
    return Unsupported("there are no Tensor Cores on this device")
