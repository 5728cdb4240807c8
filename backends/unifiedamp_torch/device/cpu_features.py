"""What a CPU's instruction set does well."""

from __future__ import annotations

import torch

from unifiedamp.backend import Support, this_processor

_X86_UNITS = {"bfloat16": "AVX512-BF16 or AMX-BF16", "float16": "AVX512-FP16 or AMX-FP16"}


def cpu_dtype(_device: torch.device, dtype: str) -> tuple[Support, Support]:
    """Return whether a 16-bit dtype runs on the CPU, and whether it is faster than float32 there."""
    return Support(True, "torch's CPU kernels"), _helps(dtype)


def _helps(dtype: str) -> Support:
    processor = this_processor()
    units = processor.fast_units(dtype) if processor.flags else _units_from_torch(dtype)
    if units:
        return Support(True, f"this CPU has {' and '.join(units)}")
    return Support(False, f"this CPU has no {_X86_UNITS[dtype]}: {dtype} is emulated in float32")


def _units_from_torch(dtype: str) -> tuple[str, ...]:
    """Return what torch knows, where the system lists no features."""
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return ("AVX512-BF16",) if dtype == "bfloat16" and probe is not None and probe() else ()
