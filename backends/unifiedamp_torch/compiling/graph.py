"""CUDA graphs: capturing a function's kernels and launching them again at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CudaStage:
    """Where a session's steps are captured: one stream, and one pool of memory for all graphs.

    The graphs may share memory because they never run at the same time and everything that outlives a capture
    (gradients, findings, outputs) is held by whoever captured it.

    Args:
        device: the CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # A pool is gone with its last graph, and cannot be captured into again: these keep it.
        self._anchors = [self._empty()]

    def run(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` on the stream that is captured later, so that what lives on a stream is ready there."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return fn()
        finally:  # whatever an interrupted step asked for is done before it is looked at
            current.wait_stream(self._stream)

    def capture(self, fn: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture what ``fn`` asks of the device, without doing it.

        Returns:
            A function that does it, and what ``fn`` returned: tensors that each replay fills.

        Raises:
            Exception: whatever ``fn`` raised, or the driver's error; nothing is being captured any more.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            # Other threads (a loader that pins memory) may go on asking things of the device.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = fn()
            except BaseException:
                self._abandon(graph)
                raise
            graph.capture_end()
        return graph.replay, output

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            # The driver had broken the capture off, and torch then leaves the pool and its random generator in the
            # belief that it goes on. The pool is given up, and ending an empty capture tells the generator.
            self._pool = torch.cuda.graph_pool_handle()
            self._anchors.append(self._empty())

    def _empty(self) -> torch.cuda.CUDAGraph:
        """Capture next to nothing; the stage's stream must be current, or none be captured."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            torch.zeros(1, device=self._device)
            graph.capture_end()
        return graph
