"""Apex as it was before amp.initialize, and Apex that importlib imports: said by line, and never passed over."""

from __future__ import annotations

import pytest
from migrating import migrated

STEP = """\
model = torch.nn.Linear(2, 2).half()
optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), dynamic_loss_scale=True)
optimizer.backward(model(torch.ones(2, 2).half()).sum())
optimizer.step()
"""
LATE = """\
import importlib
import torch

amp = None

def start(model, optimizer):
    global amp
    amp = importlib.import_module("apex.amp")
    model, optimizer = amp.initialize(model, optimizer)
    return model, optimizer

def step(loss, optimizer):
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "line",
    [
        "from apex.optimizers import FP16_Optimizer",
        "from apex.fp16_utils import FP16_Optimizer",
        "from apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer",
        "from apex.fp16_utils import *",
    ],
)
def test_optimizers_in_float16_are_named(line):
    done = migrated(f"import torch\n{line}\n{STEP}")
    assert not done.changed
    (found,) = done.findings
    assert found.line == 4
    assert "FP16_Optimizer(), which Apex had before amp.initialize" in found.what


def test_the_first_amp_is_named():
    done = migrated("from apex import amp\n\nhandle = amp.init(enabled=True)\n")
    assert not done.changed
    assert [(one.line, "amp.init(), which Apex had before" in one.what) for one in done.findings] == [(3, True)]


def test_everything_of_fp16_utils_beside_amp_alone_is_no_reason():
    text = (
        "import torch\nfrom apex.fp16_utils import *\nfrom apex import amp\n"
        "model = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model, optimizer = amp.initialize(model, optimizer)\nloss = model(torch.ones(2, 2)).sum()\n"
        "with amp.scale_loss(loss, optimizer) as scaled_loss:\n    scaled_loss.backward()\noptimizer.step()\n"
    )
    assert migrated(text).changed
    done = migrated(text + "network_to_half(model)\n")
    assert done.refused
    assert [one.line for one in done.findings if "network_to_half()" in one.what] == [11]


def test_an_import_by_importlib_is_named():
    done = migrated(LATE)
    assert not done.changed
    assert [(one.line, "importlib imports amp" in one.what) for one in done.findings] == [(9, True), (13, True)]
    other = LATE.replace("apex.amp", "tools.amp")
    assert not migrated(other).findings
