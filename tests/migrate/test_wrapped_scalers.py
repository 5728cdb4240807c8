"""Objects of other code that scale losses by themselves, as timm's NativeScaler: said where they are made."""

from __future__ import annotations

import pytest
from migrating import migrated

TRAIN = """\
import torch
from {module} import {name} as Scaler{more}

def train(model, optimizer, loader):
    loss_scaler = Scaler()
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = model(x, y)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
"""
NATIVE = [("timm.utils", "NativeScaler"), ("util.misc", "NativeScalerWithGradNormCount")]


@pytest.mark.parametrize(("module", "name"), NATIVE)
def test_an_object_around_a_scaler_is_pointed_at(module, name):
    done = migrated(TRAIN.format(module=module, name=name, more=""))
    assert not done.changed
    assert not done.refused
    assert [(one.line, "holds a GradScaler" in one.what) for one in done.findings] == [(5, True), (7, False)]


def test_it_is_pointed_at_without_an_autocast_beside_it():
    text = "from util.misc import NativeScalerWithGradNormCount as NativeScaler\nloss_scaler = NativeScaler()\n"
    assert [one.line for one in migrated(text).findings] == [2]
    own = "class NativeScaler:\n    pass\n\nloss_scaler = NativeScaler()\n"
    assert not migrated(own).findings


def test_an_object_that_scales_by_apex_is_a_reason():
    text = TRAIN.format(module="timm.utils", name="ApexScaler", more="\nfrom apex import amp")
    text = text.replace("    loss_scaler", "    model, optimizer = amp.initialize(model, optimizer)\n    loss_scaler")
    done = migrated(text)
    assert done.refused
    assert [one.line for one in done.findings if "scales losses by Apex" in one.what] == [7]
