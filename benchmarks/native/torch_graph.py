"""A native training step over ranks in one CUDA graph, written by hand: what a captured step can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

UNCAPTURED = 13
"""Steps before the capture; the reducer of DDP needs eleven."""


def captured(make: Callable[[], Callable[[], torch.Tensor]]) -> Callable[[], Any]:
    """Return the replay of one step's capture, communication included.

    Args:
        make: builds model and optimizer, on the stream that is captured, and returns a step over fixed tensors.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step = make()
        for _ in range(UNCAPTURED):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = step()

    held = graph, step  # the graph reads and writes the tensors of the step's model and optimizer

    def replay() -> torch.Tensor:
        held[0].replay()
        return loss

    return replay
