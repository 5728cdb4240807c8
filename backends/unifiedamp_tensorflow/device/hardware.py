"""What a device computes fast: 16-bit dtypes, and TensorFlow's graph rewrite."""

from __future__ import annotations

from unifiedamp.backend import Support, this_processor

from .selection import DeviceInfo

TENSOR_CORES, BFLOAT16_CORES = (7, 0), (8, 0)
"""The first compute capabilities with Tensor Cores for float16 and for bfloat16."""


def bfloat16_gain(device: DeviceInfo) -> Support:
    """Return whether bfloat16 is faster than float32."""
    if device.is_cpu:
        units = this_processor().fast_units("bfloat16")
        return Support(bool(units), f"oneDNN uses {', '.join(units)}" if units else "the CPU has no bfloat16 units")
    ok = device.compute_capability is None or device.compute_capability >= BFLOAT16_CORES
    return Support(ok, "bfloat16 Tensor Cores" if ok else f"no bfloat16 units at {device.compute_capability}")


def float16_gain(device: DeviceInfo) -> Support:
    """Return whether float16 is faster than float32."""
    if device.is_cpu:
        return Support(False, "TensorFlow has no float16 units on CPU; convolutions may be a hundred times slower")
    ok = device.compute_capability is None or device.compute_capability >= TENSOR_CORES
    return Support(ok, "float16 Tensor Cores" if ok else f"no Tensor Cores at {device.compute_capability}")


def dtype_gain(dtype: str, device: DeviceInfo) -> Support:
    """Return whether a dtype of less than 32 bits is faster than float32."""
    if dtype == "float8":
        return Support(True, "emulated, for its numerics alone")
    return float16_gain(device) if dtype == "float16" else bfloat16_gain(device)


def recommended_policy(device: DeviceInfo) -> tuple[str, str]:
    """Return the preset recommended for a device, and why."""
    bfloat16 = bfloat16_gain(device)
    if bfloat16:
        return "mixed_bfloat16", bfloat16.reason
    float16 = float16_gain(device)
    return ("mixed_float16", float16.reason) if float16 else ("float32", bfloat16.reason)


def rewrite_support(device: DeviceInfo) -> Support:
    """Return whether the graph rewrite changes graphs: to float16 on a GPU, to bfloat16 on a CPU with AVX512."""
    if not device.is_cpu:
        return Support(True, "to float16")
    flags = this_processor().flags
    if not flags or flags & {"avx512f", "avx_ne_convert"}:
        return Support(True, "to bfloat16, by oneDNN")
    return Support(
        False,
        "TensorFlow's rewrite to bfloat16 leaves graphs alone on CPUs without AVX512 or AVX-NE-CONVERT, and the one to "
        "float16 needs a GPU",
    )
