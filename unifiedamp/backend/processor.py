"""The processor, and which 16-bit dtypes it computes in natively: one answer for all backends. Imports no framework."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path

UNITS = {
    "avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16", "avx512_fp16": "AVX512-FP16", "amx_fp16": "AMX-FP16",
    "amx_tile": "AMX", "avx_ne_convert": "AVX-NE-CONVERT", "bf16": "Arm BF16", "asimdhp": "Arm FP16",
}  # fmt: skip
"""Feature flag of Linux → the 16-bit unit's usual name."""

FAST = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "asimdhp")}
"""Dtype → the flags of the units that multiply in it. AVX-NE-CONVERT converts bfloat16 only, so it is none of them."""


@dataclass(frozen=True)
class Processor:
    """The processor, as Linux describes it.

    Attributes:
        name: its name; what Python knows on other systems.
        family, model: their numbers as text; "?" where unknown.
        flags: its feature flags; empty where unknown.
    """

    name: str
    family: str
    model: str
    flags: frozenset[str]

    def units(self) -> tuple[str, ...]:
        """Return the names of its 16-bit units."""
        return tuple([label for flag, label in UNITS.items() if flag in self.flags])

    def fast_units(self, dtype: str) -> tuple[str, ...]:
        """Return the names of the units that multiply in ``dtype``; without any, the dtype is emulated in float32."""
        return tuple([UNITS[flag] for flag in FAST[dtype] if flag in self.flags])


@functools.cache
def this_processor() -> Processor:
    """Return this machine's processor, read once."""
    return read_processor()


def read_processor() -> Processor:
    """Read this machine's processor from ``/proc/cpuinfo``."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = dict(reversed([_pair(line) for line in text.splitlines() if ":" in line]))
    flags = (lines.get("flags") or lines.get("Features") or "").split()
    name = lines.get("model name") or platform.processor() or platform.machine()
    return Processor(name, lines.get("cpu family", "?"), lines.get("model", "?"), frozenset(flags))


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()
