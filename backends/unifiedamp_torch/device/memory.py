"""Peak memory, and which errors mean that memory ran out."""

from __future__ import annotations

import torch

from .kinds import traits

CPU_MESSAGES = ("can't allocate memory", "not enough memory")
"""What the ``RuntimeError`` of torch's CPU allocator says."""


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that torch's CUDA allocator has handed out; None elsewhere.

    torch counts them since the process began, or since ``torch.cuda.reset_peak_memory_stats``.
    """
    return torch.cuda.max_memory_allocated(device) if traits(device).profiles_kernels else None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that torch ran out of memory."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in CPU_MESSAGES)
