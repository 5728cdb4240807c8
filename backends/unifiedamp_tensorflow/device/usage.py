"""What a session uses of its device: memory, and the kernels that it runs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from .devices import Device


def peak_memory(device: Device) -> int | None:
    """Return the most bytes that TensorFlow's GPU allocator has handed out; None on the CPU."""
    if device.is_cpu:
        return None
    return int(tf.config.experimental.get_memory_info(device.tf_name.strip("/"))["peak"])


def out_of_memory(error: BaseException) -> bool:
    """Tell whether TensorFlow, or XLA under it, ran out of memory."""
    return isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError)) or "RESOURCE_EXHAUSTED" in str(error)


def kernel_times(run: Callable[[], Any]) -> dict[str, float]:
    """Return name → seconds of the GPU kernels that ``run`` started."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            run()
        finally:
            tf.profiler.experimental.stop()
        times: Counter[str] = Counter()
        for path in Path(folder).rglob("*.xplane.pb"):
            for name, seconds in _kernels(path.read_bytes()):
                times[name] += seconds  # type: ignore[assignment]
    return dict(times)


def _kernels(trace: bytes) -> Iterator[tuple[str, float]]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(trace)
    for plane in space.planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                # Lines that are no streams are TensorFlow's own summary of the same kernels.
                if line.name.startswith("Stream"):
                    for event in line.events:
                        yield plane.event_metadata[event.metadata_id].name, event.duration_ps * 1e-12
