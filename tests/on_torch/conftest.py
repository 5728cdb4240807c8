"""Makes ``loops`` importable from the tests beside it; how averages move; a fresh dynamo."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["host", "selection", "kernel"])
def mover(request, monkeypatch):
    """How averages move: on the host's decision, by selection on the device, or by the fused kernel."""
    if request.param != "host":
        from loops import pretend_reads_sync

        from unifiedamp_torch.device import kinds

        pretend_reads_sync(monkeypatch)
        fused = request.param == "kernel"
        monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], fused_sgd=fused))
    return request.param


@pytest.fixture
def fresh_dynamo():
    """Nothing compiled and nothing counted before the test, nor left after it."""
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
