"""What the CPU has instructions for."""

from __future__ import annotations

import functools
from pathlib import Path

AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
"""What the oneDNN in MXNet needs to run bfloat16 at all."""

BFLOAT16 = {"avx512_bf16", "amx_bf16"}
"""Either makes bfloat16 faster than float32."""


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as Linux names them; empty where they are not known."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    except OSError:
        return frozenset()


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU computes in bfloat16 (AVX512-BF16 or AMX); unknown counts as no."""
    return bool(cpu_flags() & BFLOAT16)


def cpu_runs_bfloat16() -> bool:
    """Return whether bfloat16 runs on this CPU at all; unknown counts as yes."""
    return not cpu_flags() or cpu_flags() >= AVX512
