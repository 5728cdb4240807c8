"""What a recorded step is boiled down to: counts by powers of two, and largest values.

Nothing here waits for the device. Gradients are counted many at a time: most are so small that starting an operator
costs more than its work.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from unifiedamp.backend import recording

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
    for batch in _batches([_flat(dense(gradient.detach())) for gradient in gradients]):
        sizes = [values.numel() for values in batch]
        joined = torch.cat(batch) if len(batch) > 1 else batch[0]
        scaled = _histograms(joined, sizes)
        yield scaled, scaled if inverse is None else _histograms(joined.float() * inverse.to(joined.device), sizes)


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value, without dimensions: inf or nan where the tensor holds one."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        if tensor.device.type != "cpu":
            return torch.linalg.vector_norm(tensor, float("inf"))
        low, high = torch.aminmax(_in_memory_order(tensor))  # several times faster there; nan comes through as well
        return torch.maximum(high, -low)


def _batches(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield neighbours of one device and dtype, up to ``TOGETHER`` values at a time."""
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
    """Return the counts of pieces of so many values, one vector after the other."""
    bits = values.float().view(torch.int32) & 0x7FFFFFFF
    if bits.device.type != "cuda":
        places = (bits >> 23).add_(1).add_(bits > recording.MAX_BITS).add_(bits > recording.INF_BITS)
        places.sub_((bits == 0).int())
        return torch.cat([torch.bincount(piece, minlength=recording.BUCKETS) for piece in places.split(sizes)])
    # Fewer kernels; and bincount would wait for the device to learn the largest place.
    places = torch.bucketize(bits, _edges(bits.device), right=True, out_int32=True)
    return torch.cat([torch.histc(piece, recording.BUCKETS, 0, recording.BUCKETS) for piece in places.split(sizes)])


@functools.cache
def _edges(device: torch.device) -> torch.Tensor:
    return torch.tensor(recording.EDGE_BITS, dtype=torch.int32, device=device)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return what is there of a gradient: of a sparse one its values, of a DTensor what lies on this rank, of a complex
    one its real and imaginary parts.
    """
    values = gradient._values() if gradient.is_sparse else gradient
    values = getattr(values, "_local_tensor", values)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return _in_memory_order(tensor).reshape(-1)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with dimensions in the order in which they lie in memory: reading it whole copies nothing then."""
    if tensor.is_contiguous():
        return tensor
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
