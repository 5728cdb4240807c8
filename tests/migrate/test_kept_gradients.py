"""Gradients that are read behind the step, which clears them: kept where it is always taken, and refused elsewhere."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")
from migrating import migrated, replaced

LOGGED = """\
import torch

model = torch.nn.DataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for x in data:
    with torch.cuda.amp.autocast():
        loss = model(x).sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if logs():
        for name, value in model.module.named_parameters():
            if not torch.isnan(value.grad).any():
                log(name, value.grad.norm())
"""


def test_gradients_are_kept_before_the_step():
    done = migrated(LOGGED)
    assert not done.findings
    new = done.after.decode()
    assert (
        "    amp.unscale(optimizer)\n    gradients = {param: param.grad for param in model.module.parameters()}\n"
        "    amp.step(optimizer)\n"
    ) in new
    assert "if not torch.isnan(gradients[value]).any():\n                log(name, gradients[value].norm())\n" in new


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("    scaler.step(optimizer)\n", "    if ready():\n        scaler.step(optimizer)\n", 16),
        ("    scaler.update()\n", "    scaler.update()\n    optimizer.zero_grad(set_to_none=False)\n", 16),
        ("log(name, value.grad.norm())", "value.grad.mul_(0.5)", 15),
        ("log(name, value.grad.norm())", "log(model.module.weight.grad.norm())", 15),
        ("loss = model(x).sum()", "gradients = loss = model(x).sum()", 15),
    ],
)
def test_gradients_that_cannot_be_kept_are_refused(old, new, line):
    done = migrated(replaced(LOGGED, (old, new)))
    assert not done.changed
    said = {found.line: found.what for found in done.findings if found.blocks}
    assert "which clears gradients" in said[line]
