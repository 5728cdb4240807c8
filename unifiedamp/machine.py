"""The machine as it is, asked without any framework: the processor's low-precision units, and NVIDIA's GPUs."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .backend.processor import read_processor

WIDE = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "Neon"}
"""Feature flag of Linux → vector units for float32."""

TENSOR_CORES: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((7, 0), ("float16",)),
    ((8, 0), ("bfloat16", "tf32", "float64")),
    ((8, 9), ("float8",)),
    ((10, 0), ("float4",)),
)
"""Compute capability → what its Tensor Cores take beyond the ones before, of NVIDIA's programming guide."""


@dataclass(frozen=True)
class Cpu:
    """The processor.

    Attributes:
        name: as the system calls it.
        units: its 16-bit units; empty where it has none, or Linux does not say.
        vectors: its widest float32 vector units.
    """

    name: str
    units: tuple[str, ...]
    vectors: str


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, as the driver reports it.

    Attributes:
        name: as the driver calls it.
        compute_capability: major and minor.
        memory: bytes in all.
    """

    name: str
    compute_capability: tuple[int, int]
    memory: int

    @property
    def tensor_cores(self) -> tuple[str, ...]:
        """The dtypes that its Tensor Cores take; empty where it has none."""
        return tensor_core_dtypes(self.compute_capability)


def tensor_core_dtypes(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the dtypes that Tensor Cores of a compute capability take; empty where there are none."""
    return tuple(dtype for least, dtypes in TENSOR_CORES if capability >= least for dtype in dtypes)


def cpu() -> Cpu:
    """Return the processor."""
    found = read_processor()
    vectors = next((label for flag, label in WIDE.items() if flag in found.flags), "")
    return Cpu(found.name, found.units(), vectors)


def gpus(driver: Any = None) -> tuple[Gpu, ...]:
    """Return the GPUs that the CUDA driver sees; empty without a driver.

    Args:
        driver: the driver's library; None loads it.
    """
    if driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_gpu(driver, index) for index in range(count.value))


def _gpu(driver: Any, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(100), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), int(memory.value))


def peak_process_memory() -> int | None:
    """Return the most bytes that this process has held in memory so far; None where the system does not say."""
    held = _peak_resident()
    if held is not None:
        return held
    try:
        import resource
    except ImportError:
        return None
    # Kilobytes on the BSDs, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_memory() -> int:
    """Return the bytes that a new process could have."""
    return int(psutil.virtual_memory().available)


def limit_memory(size: int) -> None:
    """Let this process hold no more than ``size`` bytes of data, so that it gets an error instead of being killed."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _peak_resident() -> int | None:
    """Return Linux's own count, which begins anew with each program; ``resource`` keeps the parent's."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
