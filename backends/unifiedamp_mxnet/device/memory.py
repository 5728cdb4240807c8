"""Memory of the device: whether it ran out.

MXNet has an error class for everything and says in words what failed. It keeps no count of its peak memory, so
``MXNetDevice`` has none.
"""

from __future__ import annotations

from ..mxnet_api import base

OUT_OF_MEMORY = (
    "out of memory",  # CUDA
    "Memory allocation failed",  # the pool of GPU memory
    "Failed to allocate CPU Memory",
    "bad_alloc",  # the C++ library
)
"""What an ``MXNetError`` says when memory ran out."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether MXNet or Python ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, base.MXNetError):
        return False
    message = str(error)
    return any(words in message for words in OUT_OF_MEMORY)
