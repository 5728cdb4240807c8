"""Using one backend imports no other framework and no other backend."""

import subprocess
import sys

import pytest

from unifiedamp.config import plugins
from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.plugin import peers

STEP = """
import sys
import numpy as np
import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness

harness = load_harness({name!r})
amp = ua.Amp({name!r}, {policy!r}, loss_scale=4.0)
with amp.scope():
    model = harness.probe([1.0])
    optimizer = harness.sgd([model], 0.1)
model, optimizer = amp.prepare(model, optimizer)
amp.backward(lambda: model(amp.to_native(np.ones(1, np.float32))), optimizer)
assert amp.step(optimizer).applied
amp.explain()
print("loaded:", *sorted({{module.partition(".")[0] for module in sys.modules}}))
"""

FRAMEWORKS = {"torch": {"torch"}, "tensorflow": {"tensorflow", "keras"}, "mxnet": {"mxnet"}}


@pytest.mark.parametrize("name", [name for name in peers() if name in FRAMEWORKS])
def test_imports_no_other_framework(name):
    runs = load_harness(name).capabilities().policies["mixed_bfloat16"]  # MXNet's wants AVX512
    script = STEP.format(name=name, policy="mixed_bfloat16" if runs else "float32")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.rpartition("loaded:")[2].split())
    others = set().union(*(names for other, names in FRAMEWORKS.items() if other != name))
    others |= {f"unifiedamp_{other}" for other in plugins.backend_entry_points() if other != name}
    assert plugins.load_plugin(name).framework in loaded
    assert not loaded & others
