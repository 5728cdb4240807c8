"""Contexts by name, and whether this MXNet can run on a GPU at all."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from unifiedamp.backend import Support, errors

from .._types import Context
from ..mxnet_api import mx

NEWEST_MAJOR = 8
"""MXNet's published GPU wheels hold code for compute capability 5.0 to 8.6 and no PTX to make other code from."""


@functools.cache
def compute_capability(index: int) -> tuple[int, int] | None:
    """Return the compute capability of a GPU as the CUDA driver reports it; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    for value, attribute in zip(values, (75, 76), strict=True):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
    return values[0].value, values[1].value


def built_with_cuda() -> bool:
    """Return whether this MXNet was built for GPUs."""
    return bool(mx.runtime.Features().is_enabled("CUDA"))


def gpu_support(index: int) -> Support:
    """Return whether this MXNet runs on a GPU, and why not."""
    if not built_with_cuda():
        return Support(False, f"this MXNet ({mx.__version__}) was built without CUDA; use device='cpu'")
    capability = compute_capability(index)
    if capability is not None and capability[0] > NEWEST_MAJOR:
        return Support(
            False,
            f"the GPU has compute capability {capability[0]}.{capability[1]}, and MXNet's published wheels hold code "
            "for 5.0 to 8.6 and no PTX: on Hopper or newer they cannot run; use device='cpu'",
        )
    return Support(True)


def is_cpu(context: Context) -> bool:
    """Return whether a context is the host ("cpu", "cpu_pinned")."""
    return context.device_type.startswith("cpu")


def resolve_context(device: str | None) -> Context:
    """Return the context that ``device`` names ("cpu", "cuda:1", "gpu(0)"); None means a GPU if MXNet runs on one.

    Raises:
        ConfigError: the text is not the name of a device.
    """
    if device is None:
        found: Context = mx.gpu(0) if mx.context.num_gpus() > 0 and gpu_support(0) else mx.cpu(0)
        return found
    kind, _, index = device.lower().replace("(", ":").rstrip(")").partition(":")
    makers: dict[str, Callable[[int], Context]] = {"cpu": mx.cpu, "gpu": mx.gpu, "cuda": mx.gpu}
    if kind not in makers or not (index or "0").isdigit():
        raise errors.ConfigError(f"device {device!r} is none of MXNet's: write 'cpu', 'gpu' or 'gpu(1)'")
    return makers[kind](int(index or 0))
