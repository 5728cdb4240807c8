"""What a session uses of its device."""

from __future__ import annotations

from .versions import base

SAID = ("out of memory", "Memory allocation failed", "Failed to allocate CPU Memory", "bad_alloc")
"""What an MXNetError says when memory ran out: of CUDA, of the GPU pool, of the CPU, of the C++ library."""


def out_of_memory(error: BaseException) -> bool:
    """Tell whether MXNet ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, base.MXNetError) and any(words in str(error) for words in SAID)
