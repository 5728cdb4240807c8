"""What a CPU's instruction set does well."""

from __future__ import annotations

from pathlib import Path

import torch

from unifiedamp.backend import Support

_X86_FLAGS = {
    "bfloat16": (("avx512_bf16", "AVX512-BF16"), ("amx_bf16", "AMX-BF16")),
    "float16": (("avx512_fp16", "AVX512-FP16"), ("amx_fp16", "AMX-FP16")),
}
"""Dtype → the x86 instructions that make it fast: the name in /proc/cpuinfo, and the usual one."""
_ARM_FLAGS = {"bfloat16": (("bf16", "Arm BF16"),), "float16": (("asimdhp", "Arm FP16"),)}


def cpu_dtype(_device: torch.device, dtype: str) -> tuple[Support, Support]:
    """Return whether a 16-bit dtype runs on the CPU, and whether it is faster than float32 there."""
    return Support(True, "torch's CPU kernels"), _helps(dtype)


def _helps(dtype: str) -> Support:
    flags = cpu_flags()
    found = [label for flag, label in _X86_FLAGS[dtype] + _ARM_FLAGS[dtype] if flag in flags]
    if found:
        return Support(True, f"this CPU has {' and '.join(found)}")
    lacking = " or ".join(label for _, label in _X86_FLAGS[dtype])
    return Support(False, f"this CPU has no {lacking}: {dtype} is emulated in float32")


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags by Linux's names; elsewhere what torch knows."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _flags_from_torch()
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    return frozenset(lines[0].partition(":")[2].split()) if lines else _flags_from_torch()


def _flags_from_torch() -> frozenset[str]:
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return frozenset({"avx512_bf16"} if probe is not None and probe() else ())
