"""The comm hook with which ``DistributedDataParallel`` sums gradients in another dtype.

What torch's ``fp16_compress_hook`` and ``bf16_compress_hook`` do, for any dtype, on CPUs too, and for sparse gradients,
which keep their dtype. This file has no ``from __future__ import annotations``: torch compares a hook's annotations.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it where it is built with ranks


class ReduceIn(NamedTuple):
    """The state of :func:`reduce_in`.

    Attributes:
        dtype: in which gradients are summed.
        group: the ranks.
    """

    dtype: torch.dtype
    group: dist.ProcessGroup


def reduce_in(state: ReduceIn, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return the mean over the ranks of a bucket of gradients, summed in ``state.dtype``, in the bucket's own dtype."""
    buffer: torch.Tensor = bucket.buffer()
    low = _narrowed(buffer, state.dtype, dist.get_world_size(state.group))
    work = dist.all_reduce(low, group=state.group, async_op=True)
    assert work is not None  # None on a rank outside the group alone

    def widened(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        total: torch.Tensor = future.value()[0]
        if buffer.is_sparse or total is buffer:
            return total
        return buffer.copy_(total)

    reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(widened)
    return reduced


def _narrowed(buffer: torch.Tensor, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return the gradients divided by the number of ranks, rounded once, to the dtype that they are summed in."""
    if buffer.is_sparse:
        return buffer.div_(count)
    return buffer.to(torch.promote_types(buffer.dtype, dtype)).div_(count).to(dtype)
