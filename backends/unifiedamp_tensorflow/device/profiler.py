"""The kernels that a GPU ran, read from a trace of TensorFlow's profiler."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Profiler

NO_KERNELS = "there are no Tensor Cores on this device"


class TensorFlowProfiler(Profiler):
    """Kernel times of a GPU."""

    means = "tf.profiler"

    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            try:
                run()
            finally:
                tf.profiler.experimental.stop()
            times: defaultdict[str, float] = defaultdict(float)
            for path in Path(folder).rglob("*.xplane.pb"):
                for name, seconds in kernels(path.read_bytes()):
                    times[name] += seconds
        return dict(times)


def kernels(trace: bytes) -> Iterator[tuple[str, float]]:
    """Yield (kernel, seconds) of a trace in TensorFlow's format."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(trace)
    for plane in space.planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                # Lines that are not streams are TensorFlow's own summary of the same kernels.
                if line.name.startswith("Stream"):
                    for event in line.events:
                        yield plane.event_metadata[event.metadata_id].name, event.duration_ps * 1e-12
