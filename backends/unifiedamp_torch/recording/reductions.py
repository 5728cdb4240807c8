"""What a recorded step is reduced to: counts by powers of two, and largest values.

Nothing here waits for the device. Gradients are counted many at a time: most are so small that launching an operator
costs more than its work.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from unifiedamp.backend import recording

from ..device.kinds import traits
from ..training.gradients import dense

TOGETHER = 2**20
"""Values that are counted at a time, at most, where a gradient has no more: what counting takes in memory."""


def count(
    gradients: Sequence[torch.Tensor], inverse: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield how many values fall into each of the recording's buckets, int64 or int32, on their device.

    Args:
        gradients: of any devices and dtypes.
        inverse: of the loss scale; None without one.

    Yields:
        For some gradients at a time, in order, two vectors of ``recording.BUCKETS`` counts for each gradient: of its
        values, and of its values times ``inverse`` (the same tensor without one).
    """
    for batch in _batches([flat(dense(gradient.detach())) for gradient in gradients]):
        sizes = [values.numel() for values in batch]
        joined = torch.cat(batch) if len(batch) > 1 else batch[0]
        scaled = _histograms(joined, sizes)
        yield scaled, scaled if inverse is None else _histograms(joined.float() * inverse.to(joined.device), sizes)


def ready(device: torch.device) -> None:
    """Copy what counting needs to a device, which a capture cannot do."""
    if traits(device).bincount_waits:
        _edges(device)


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value, without dimensions: inf or nan where the tensor holds one."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        if traits(tensor.device).slow_min_max:
            norm: torch.Tensor = torch.linalg.vector_norm(tensor, float("inf"))
            return norm
        low, high = torch.aminmax(_in_memory_order(tensor))  # several times faster there, and keeps nan
        return torch.maximum(high, -low)


def _batches(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield consecutive gradients of one device and dtype, up to ``TOGETHER`` values at a time."""
    batch: list[torch.Tensor] = []
    held = 0
    for values in gradients:
        alike = batch and (values.device, values.dtype) == (batch[0].device, batch[0].dtype)
        if batch and (not alike or held + values.numel() > TOGETHER):
            yield batch
            batch, held = [], 0
        batch.append(values)
        held += values.numel()
    if batch:
        yield batch


def _histograms(values: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the counts of consecutive pieces of these sizes, one vector after the other."""
    bits = values.float().view(torch.int32) & 0x7FFFFFFF
    if not traits(bits.device).bincount_waits:
        places = (bits >> 23).add_(1).add_(bits > recording.MAX_BITS).add_(bits > recording.INF_BITS)
        places.sub_((bits == 0).int())
        return torch.cat([torch.bincount(piece, minlength=recording.BUCKETS) for piece in _split(places, sizes)])
    # Fewer kernels, and bincount would wait for the device to learn the largest place.
    places = torch.bucketize(bits, _edges(bits.device), right=True, out_int32=True)
    return torch.cat([torch.histc(piece, recording.BUCKETS, 0, recording.BUCKETS) for piece in _split(places, sizes)])


def _split(values: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return values.split(sizes)  # type: ignore[no-untyped-call, no-any-return]  # torch leaves it untyped


@functools.cache
def _edges(device: torch.device) -> torch.Tensor:
    return torch.tensor(recording.EDGE_BITS, dtype=torch.int32, device=device)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in memory order, as a view where that is possible."""
    return _in_memory_order(tensor).reshape(-1)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with dimensions in memory order, so that flattening it copies nothing."""
    if tensor.is_contiguous():
        return tensor
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
