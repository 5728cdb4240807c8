"""The memory that this process has held at most."""

from __future__ import annotations

import sys
from pathlib import Path


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


def _peak_resident() -> int | None:
    """Return Linux's own count, which begins anew with each program; ``resource`` keeps the parent's."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
