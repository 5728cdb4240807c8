"""What backends tell of their use of a device: memory that ran out, and kernels in a trace."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from command_runs import installed

import unifiedamp as ua

ALLOCATE = {
    "torch": "import torch; torch.ones(2**32)",
    "tensorflow": "import tensorflow as tf; tf.ones((2**32,)).numpy()",
    "mxnet": "import mxnet as mx; mx.nd.ones((2**30,)).wait_to_read()",
}
"""Four bytes each: 4 GiB at least, under a limit of one."""

SCRIPT = """
import os, warnings
warnings.simplefilter("ignore")
import unifiedamp as ua
from unifiedamp import machine
device = ua.Amp({name!r}, "float32", device="cpu").backend.device
machine.limit_memory(2**30)
try:
    {allocate}
except Exception as error:
    print("told:", device.out_of_memory(error), device.out_of_memory(ValueError("out of patience")))
os._exit(0)  # a framework under a limit need not end well
"""


@pytest.mark.parametrize("name", [name for name in installed() if name in ALLOCATE])
def test_memory_that_ran_out_is_told_from_other_errors(command, name):
    script = SCRIPT.format(name=name, allocate=ALLOCATE[name])
    run = subprocess.run([sys.executable, "-u", "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert "told: True False" in run.stdout, run.stderr[-500:]


def test_a_cpu_counts_no_device_memory(backend):
    amp = ua.Amp(backend, "float32", device="cpu")
    assert amp.backend.device.peak_memory() is None
    assert amp.backend.device.out_of_memory(MemoryError())


def test_kernels_are_declared_where_there_are_some(backend):
    amp = ua.Amp(backend, "float32", device="cpu")
    support = amp.capabilities.feature("kernel_profile")
    assert not support
    assert support.reason


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_kernels_of_a_tensorflow_trace():
    """A trace as TensorFlow writes it: kernels are on the streams of GPU planes, and only those count."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from unifiedamp_tensorflow.device.profiler import kernels

    space = xplane_pb2.XSpace()
    for plane_name, line_name, picoseconds in (
        ("/device:GPU:0", "Stream #13(Compute)", 2_000_000),
        ("/device:GPU:0", "TensorFlow Ops", 9_000_000),
        ("/host:CPU", "Stream #1", 9_000_000),
    ):
        plane = space.planes.add(name=plane_name)
        plane.event_metadata[7].name = "volta_sgemm_128x64_nn"
        plane.lines.add(name=line_name).events.add(metadata_id=7, duration_ps=picoseconds)
    assert list(kernels(space.SerializeToString())) == [("volta_sgemm_128x64_nn", pytest.approx(2e-6))]
