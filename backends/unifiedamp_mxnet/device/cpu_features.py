"""What the CPU's instructions mean for MXNet, whose oneDNN runs bfloat16."""

from __future__ import annotations

from unifiedamp.backend import this_processor

AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
"""What oneDNN needs on x86 to run bfloat16 at all."""

X86 = "sse2"
"""A feature flag that every 64-bit x86 CPU has."""


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU computes in bfloat16; unknown counts as no."""
    return bool(this_processor().fast_units("bfloat16"))


def cpu_runs_bfloat16() -> bool:
    """Return whether bfloat16 runs on this CPU at all; unknown counts as yes."""
    flags = this_processor().flags
    return X86 not in flags or flags >= AVX512
