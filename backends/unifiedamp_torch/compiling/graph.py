"""CUDA graphs: capturing a function's kernels, and launching them again in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


class CudaGraphCapturer:
    """Captures a session's steps on one stream, with one pool of memory for all graphs.

    The graphs may share memory because they never run at the same time, and everything that outlives a capture
    (gradients, findings, outputs) is held by the captured step.

    Args:
        device: the CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # A pool is freed with its last graph, and cannot be captured into again: these keep it.
        self._anchors = [self._empty()]

    def run(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` on the stream that is captured later, so that state that belongs to a stream exists there."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return fn()
        finally:  # what an interrupted step launched is done before its results are read
            current.wait_stream(self._stream)

    def capture(self, fn: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture what ``fn`` launches, without running it.

        Returns:
            A function that runs it, and what ``fn`` returned: tensors that each replay fills.

        Raises:
            Exception: what ``fn`` raised, or the driver's error; the capture has ended.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            # Other threads (a loader that pins memory) may go on using the device.
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
            with warnings.catch_warnings():
                # torch warns of a graph without kernels, which says nothing about what was raised.
                warnings.simplefilter("ignore", UserWarning)
                graph.capture_end()
        except RuntimeError:
            # The driver had aborted the capture, and torch's pool and random generator still count it as running. The
            # pool is given up, and ending an empty capture resets the generator.
            self._pool = torch.cuda.graph_pool_handle()
            self._anchors.append(self._empty())

    def _empty(self) -> torch.cuda.CUDAGraph:
        """Capture a single allocation; no other stream may be capturing."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            torch.zeros(1, device=self._device)
            graph.capture_end()
        return graph
