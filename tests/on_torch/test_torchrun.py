"""A script that torchrun starts as two ranks is one measured run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import torch
import torch.distributed as dist
import unifiedamp as ua

dist.init_process_group("gloo")
torch.manual_seed(0)
amp = ua.Amp("torch", "mixed_float16", device="cpu")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer = amp.prepare(model, optimizer)
open(f"rank-{dist.get_rank()}.txt", "a").write(str(amp.policy) + "\\n")
x, labels = torch.randn(8, 8), torch.arange(8) % 4
while True:
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x), labels)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    amp.step(optimizer)
"""


def torchrun(*arguments):
    return (*arguments, "--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "train.py")  # fmt: skip


@pytest.fixture
def command(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*arguments):
        whole = [sys.executable, "-m", "unifiedamp", *map(str, torchrun(*arguments))]
        return subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    return run


def test_two_ranks_are_one_run(command, tmp_path):
    done = command("compare", "--steps", 8, "--rounds", 1, "--policies", "float32,mixed_float16", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["policy"], row["state"], len(row["losses"])) for row in rows] == [
        ("float32", "done", 8), ("mixed_float16", "done", 8)
    ]  # fmt: skip
    assert rows[0]["losses"] == pytest.approx(rows[1]["losses"], rel=1e-2)
    for rank in range(2):
        assert (tmp_path / f"rank-{rank}.txt").read_text().split() == ["float32", "mixed_float16"]


def test_a_recording_is_of_one_rank(command, tmp_path):
    done = command("record", "--steps", 3, "--out", "run.jsonl")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert steps == sorted(set(steps)), "each step is there once"
    assert [line["count"] for line in lines if line["kind"] == "ranks"] == [2] * len(steps), "and is of both ranks"
