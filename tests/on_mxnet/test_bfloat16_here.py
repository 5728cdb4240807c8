"""What skips bfloat16 on CPUs without AVX512, proved without the backend's own look: MXNet itself fails there."""

import sys
from pathlib import Path

import forked
import pytest

import unifiedamp as ua

CPUINFO = Path("/proc/cpuinfo")
LINES = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
FLAGS = [line.split() for line in LINES if line.startswith("flags")]
# What oneDNN calls avx512_core, the least that its bfloat16 wants.
MISSING = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}.difference(*FLAGS[:1])

pytestmark = pytest.mark.skipif(not FLAGS, reason="the evidence is Linux's list of x86 CPU flags")

DENSE = """
import numpy as np
import unifiedamp_mxnet.mxnet_api  # MXNet wants help to be imported, no more
import mxnet as mx

bfloat16 = np.dtype([("bfloat16", np.uint16)])
x, w = (mx.nd.amp_cast(mx.nd.ones(shape), dtype=bfloat16) for shape in ((4, 8), (2, 8)))
print("cast", flush=True)
out = mx.nd.FullyConnected(x, w, no_bias=True, num_hidden=2)
print(mx.nd.amp_cast(out, dtype="float32").asnumpy().tolist())
"""


def test_bfloat16_is_refused_exactly_where_the_cpu_lacks_avx512():
    support = ua.Amp("mxnet", "float32", device="cpu").capabilities.policies["mixed_bfloat16"]
    assert bool(support) == (not MISSING)
    assert ("no AVX512" in support.reason) == bool(MISSING)


def test_mxnet_itself_fails_exactly_there():
    """A dense layer by MXNet's own operators, in a separate process: MXNet does not forget one that failed."""
    run = forked.run([sys.executable, "-c", DENSE])
    said = run.stdout.splitlines()
    assert said[0] == "cast"
    if MISSING:
        assert run.returncode == 1
        assert "MXNetError: could not create a primitive" in run.stderr
    else:
        assert said[1] == str([[8.0, 8.0]] * 4)
