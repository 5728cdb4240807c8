"""`unifiedamp train --launcher ray`: processes of Ray Train train a workload as one process does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unifiedamp.errors import AmpError
from unifiedamp.workloads.configuration import read_settings, read_source
from unifiedamp.workloads.training.job import Job
from unifiedamp.workloads.training.on_ray import train_on_ray

ray = pytest.importorskip("ray")
pytest.importorskip("ray.train")

FOLDER = Path(__file__).parents[1] / "workloads"
FILES = {"torch": FOLDER / "divided.py", "tensorflow": FOLDER / "divided_keras.py"}
CONFIG = """
workload = "{file}:Regression"
[amp]
backend = "{backend}"
device = "cpu"
policy = "float32"
[settings]
fault = "{fault}"
mark = "{mark}"
epoch = 2
[train]
epochs = 3
checkpoint_every = 5
"""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
# Seconds that Ray waits for processes to begin, beside other tests: a minute each is its default.
PATIENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900", "RAY_worker_register_timeout_seconds": "900"}


def train(folder, backend, fault, *options):
    config = folder / f"{fault or 'alone'}.toml"
    config.write_text(CONFIG.format(file=FILES[backend], backend=backend, fault=fault, mark=folder / "mark"))
    command = [sys.executable, "-m", "unifiedamp", "train", str(config), "--out", str(folder / config.stem), *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=1800, env={**os.environ, **QUIET, **PATIENT}
    )
    return done, folder / config.stem


@pytest.mark.parametrize("backend", FILES)
def test_a_killed_worker_is_started_anew_and_all_train_as_one(backend, tmp_path):
    """SIGKILL to one of two workers in the third epoch; Ray starts both anew, from one of the last checkpoints.

    It reads what workers report every two seconds, and reports wait for it: when one worker dies, the other one's last
    two may be unread.
    """
    pytest.importorskip(backend)
    done, out = train(
        tmp_path, backend, "killed", "--launcher", "ray", "--workers", "2", "--max-restarts", "1", "--json"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "mark").exists(), "nothing was killed"
    run = json.loads(done.stdout)
    assert run["resumed_at"] in [{"epoch": 1, "batch": 0}, {"epoch": 1, "batch": 5}, {"epoch": 2, "batch": 0}]
    assert run["finished"]
    assert run["files"] == [str(out / name) for name in ("checkpoint.npz", "log.json", "curves.png")]
    assert not (out / "ray").exists(), "copies of checkpoints are left"
    alone, other = train(tmp_path, backend, "")
    assert alone.returncode == 0, alone.stderr
    losses, expected = (json.loads((folder / "log.json").read_text())["losses"] for folder in (out, other))
    assert losses == pytest.approx(expected, rel=2e-5)


def test_a_worker_that_is_killed_before_the_first_checkpoint_is_started_anew(tmp_path):
    pytest.importorskip("torch")
    options = ("--launcher", "ray", "--workers", "2", "--max-restarts", "1", "--json")
    done, out = train(tmp_path, "torch", "killed in make_model", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "mark").exists(), "nothing was killed"
    run = json.loads(done.stdout)
    assert run["resumed_at"] is None
    assert run["finished"]
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.npz", "curves.png", "log.json"]


def test_a_ray_that_cannot_be_joined_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("torch")

    def lost(**_):
        raise ConnectionError("no answer")

    monkeypatch.setattr(ray, "init", lost)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    chosen = read_settings(read_source(str(FILES["torch"]) + ":Regression"), tmp_path, amp={"backend": "torch"})
    with pytest.raises(
        AmpError, match=r"^train: Ray could not be joined at RAY_ADDRESS=10\.0\.0\.9:6379: Conn.*no answer"
    ):
        train_on_ray(Job(chosen), 2, 0)
