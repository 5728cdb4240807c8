"""Trainers under ``unifiedamp compare -- python train.py``: each step is noted once, with the loss of its window."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import probes

STEPS, WINDOW = 8, 2
DATA = """
import torch

torch.manual_seed(0)
x = torch.randn(512, 16)
labels = (x[:, 0] > 0).long()
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
data = torch.utils.data.TensorDataset(x, labels)


def loss_of(model, x, labels):
    loss = torch.nn.functional.cross_entropy(model(x), labels)
    open("own.txt", "a").write(f"{float(loss.detach())}\\n")
    return loss
"""
LIGHTNING = """
import lightning
from unifiedamp.integrations.lightning import AmpPrecision


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        return loss_of(self.net, *batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


trainer = lightning.Trainer(
    max_epochs=100, plugins=[AmpPrecision("mixed_bfloat16")], accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, gradient_clip_val=1.0, accumulate_grad_batches=2,
)
trainer.fit(Module(), torch.utils.data.DataLoader(data, 32))
"""
FABRIC = """
from lightning.fabric import Fabric
from unifiedamp.integrations.fabric import AmpPrecision

fabric = Fabric(accelerator="cpu", plugins=[AmpPrecision("mixed_bfloat16")])
model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), 0.01))
for number, batch in enumerate([*torch.utils.data.DataLoader(data, 32)] * 100, 1):
    fabric.backward(loss_of(model, *batch) / 2)
    if number % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
ACCELERATE = """
from unifiedamp.integrations.accelerate import AmpAccelerator

accelerator = AmpAccelerator("mixed_bfloat16", cpu=True, gradient_accumulation_steps=2)
loader = torch.utils.data.DataLoader(data, 32)
model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 0.01), loader)
for _ in range(100):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, *batch))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""
TRANSFORMERS = """
from transformers import Trainer, TrainingArguments
from unifiedamp.integrations.transformers import attach


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        return {"loss": loss_of(self.net, x, labels)}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return {"x": x[index], "labels": labels[index]}


arguments = TrainingArguments(
    "out", use_cpu=True, report_to=[], num_train_epochs=100, per_device_train_batch_size=32, save_strategy="no",
    disable_tqdm=True, gradient_accumulation_steps=2, logging_strategy="no",
)
attach(Trainer(Module(), arguments, train_dataset=Rows()), "mixed_bfloat16").train()
"""
SCRIPTS = {"lightning": LIGHTNING, "fabric": FABRIC, "accelerate": ACCELERATE, "transformers": TRANSFORMERS}


@pytest.mark.parametrize("trainer", SCRIPTS)
def test_steps_of_a_trainer_are_noted(trainer, tmp_path):
    if trainer not in probes.HOSTS:
        pytest.skip(f"{trainer} is not installed")
    (tmp_path / "train.py").write_text(DATA + SCRIPTS[trainer])
    command = [sys.executable, "-m", "unifiedamp", "compare", "--policies", "float32", "--steps", str(STEPS),
               "--rounds", "1", "--json", "--", sys.executable, "train.py"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    own = [float(line) for line in (tmp_path / "own.txt").read_text().split()]
    windows = [sum(own[start : start + WINDOW]) / WINDOW for start in range(0, STEPS * WINDOW, WINDOW)]
    assert (row["state"], row["applied_steps"]) == ("done", STEPS)
    assert row["losses"] == pytest.approx(windows, rel=1e-5)
    assert row["losses"][-1] != row["losses"][0]


def test_a_window_that_was_interrupted_leaves_no_loss(tmp_path, monkeypatch):
    """Its gradients are dropped, and the next window's loss is its own."""
    import torch

    import unifiedamp as ua
    from unifiedamp.integrations.host_steps import HostSteps
    from unifiedamp.measured import VARIABLE
    from unifiedamp.measured.request import LOG, RunRequest

    RunRequest("steps", (2,)).write(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    steps = HostSteps(ua.Amp("torch", "float32", loss_scale=4.0, device="cpu"), "backward", "step")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    steps.add_model(model)
    steps.add_optimizers([optimizer])

    def loss(value):
        return model(torch.zeros(1)).sum() * 0.0 + value

    def fail(_):
        raise KeyError

    steps.backward(loss(100.0))
    with pytest.raises(KeyError):
        steps.backward(loss(100.0), fail)
    with pytest.raises(SystemExit):
        for value in (1.0, 2.0):
            steps.backward(loss(value))
            steps.backward(loss(value))
            steps.step(optimizer)
    (turn,) = [note for note in map(json.loads, (tmp_path / LOG).read_text().splitlines()) if note["kind"] == "turn"]
    assert turn["losses"] == [2.0, 4.0]
