"""Processes of torchrun that are killed at random moments: the run goes on, and loses nothing."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import effort
import psutil
import pytest

pytest.importorskip("torch")

FILE = Path(__file__).with_name("divided.py")
EPOCHS, PACE = 12 * max(effort.RANK_KILLS, 1), 0.2
CONFIG = """
workload = "{file}:Regression"
[amp]
backend = "torch"
device = "cpu"
policy = "mixed_float16"
loss_scale = {{ kind = "dynamic", initial_scale = 1024.0, growth_interval = 4 }}
[settings]
fault = "{fault}"
mark = "{mark}"
pace = {pace}
[train]
epochs = {epochs}
checkpoint_every = 2
"""


def config(folder, name, fault="overflow", pace=0.0, epochs=EPOCHS):
    path = folder / f"{name}.toml"
    path.write_text(CONFIG.format(file=FILE, fault=fault, mark=folder / "done", pace=pace, epochs=epochs))
    return [str(path), "--out", str(folder / name)]


def torchrun(words, restarts, stderr):
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts), "--monitor-interval", "0.2"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "unifiedamp", "train", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)


def workers_of(launcher, known):
    """Wait for both processes of a start; none of ``known`` is among them."""
    end = time.monotonic() + 120
    while time.monotonic() < end and launcher.poll() is None:
        found = [child for child in psutil.Process(launcher.pid).children() if child.pid not in known]
        if len(found) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError(f"torchrun started no two processes again (exit code {launcher.poll()})")


def killed_again_and_again(launcher, kills):
    """Kill one of the two processes ``kills`` times, between their start and some seconds of training."""
    rng, known = random.Random(0), set()
    for _ in range(kills):
        workers = workers_of(launcher, known)
        known |= {worker.pid for worker in workers}
        time.sleep(rng.uniform(0, 15))
        rng.choice(workers).kill()


@pytest.mark.skipif(not effort.RANK_KILLS, reason="of UNIFIEDAMP_TEST_EFFORT=full")
def test_ranks_killed_at_random_lose_nothing(tmp_path):
    with open(tmp_path / "said", "w") as said:
        launcher = torchrun(config(tmp_path, "killed", pace=PACE), effort.RANK_KILLS, said)
        try:
            killed_again_and_again(launcher, effort.RANK_KILLS)
            (tmp_path / "done").touch()  # at full speed from here
            assert launcher.wait(300) == 0, (tmp_path / "said").read_text()[-3000:]
        finally:
            launcher.terminate()
            launcher.wait(60)
    alone = torchrun(config(tmp_path, "alone"), 0, subprocess.DEVNULL)
    assert alone.wait(300) == 0
    found, expected = (json.loads((tmp_path / name / "log.json").read_text()) for name in ("killed", "alone"))
    assert len(found["losses"]) == 5 * EPOCHS
    assert found["losses"] == expected["losses"]
    assert found["scales"] == expected["scales"]
    assert [row["skipped_steps"] for row in found["epochs"]] == [row["skipped_steps"] for row in expected["epochs"]]


def test_the_others_end_soon_after_one_is_killed_and_it_is_named(tmp_path):
    with open(tmp_path / "said", "w") as said:
        launcher = torchrun(config(tmp_path, "killed", fault="killed", epochs=3), 0, said)
        begun = time.monotonic()
        assert launcher.wait(120), "it trained on"
    assert time.monotonic() - begun < 60 + 30, "the start counts too"
    text = (tmp_path / "said").read_text()
    assert "exitcode: -9" in text
    assert "local_rank: 1" in text
