"""`unifiedamp train --launcher ray`: processes of Ray Train train a workload as one process does."""

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
policy = "{policy}"
[settings]
fault = "{fault}"
mark = "{mark}"
epoch = 2
{more}
[train]
epochs = {epochs}
checkpoint_every = 5
"""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
# Seconds that Ray waits for processes to begin, beside other tests: a minute each is its default.
PATIENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900", "RAY_worker_register_timeout_seconds": "900"}


def written(folder, backend, fault, policy="float32", epochs=3, more=""):
    config = folder / f"{fault or 'alone'}.toml"
    values = {"file": FILES[backend], "backend": backend, "fault": fault, "mark": folder / "mark"}
    config.write_text(CONFIG.format(**values, policy=policy, epochs=epochs, more=more))
    return config


def train(folder, config, *options):
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
    config, options = written(tmp_path, backend, "killed"), ("--launcher", "ray", "--workers", "2", "--json")
    done, out = train(tmp_path, config, *options, "--max-restarts", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "mark").exists(), "nothing was killed"
    run = json.loads(done.stdout)
    assert run["resumed_at"] in [{"epoch": 1, "batch": 0}, {"epoch": 1, "batch": 5}, {"epoch": 2, "batch": 0}]
    assert run["finished"]
    assert run["files"] == [str(out / name) for name in ("checkpoint.npz", "log.json", "curves.png")]
    assert not (out / "ray").exists(), "copies of checkpoints are left"
    alone, other = train(tmp_path, written(tmp_path, backend, ""))
    assert alone.returncode == 0, alone.stderr
    losses, expected = (json.loads((folder / "log.json").read_text())["losses"] for folder in (out, other))
    assert losses == pytest.approx(expected, rel=2e-5)


def test_a_worker_that_is_killed_before_the_first_checkpoint_is_started_anew(tmp_path):
    pytest.importorskip("torch")
    options = ("--launcher", "ray", "--workers", "2", "--max-restarts", "1", "--json")
    done, out = train(tmp_path, written(tmp_path, "torch", "killed in make_model"), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "mark").exists(), "nothing was killed"
    run = json.loads(done.stdout)
    assert run["resumed_at"] is None
    assert run["finished"]
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.npz", "curves.png", "log.json"]


def workers_of(launcher, known):
    """Wait for both processes of a start; none of ``known`` is among them."""
    end = time.monotonic() + 300
    while time.monotonic() < end and launcher.poll() is None:
        alive = psutil.process_iter(["cmdline"])
        found = [each for each in alive if "RayTrainWorker" in " ".join(each.info["cmdline"] or [])]
        if len(found := [each for each in found if each.pid not in known]) == 2:
            return found
        time.sleep(0.1)
    raise AssertionError(f"Ray started no two processes again (exit code {launcher.poll()})")


@pytest.mark.skipif(not effort.RANK_KILLS, reason="of UNIFIEDAMP_TEST_EFFORT=full")
def test_workers_killed_at_random_lose_nothing(tmp_path):
    """Between their start and some seconds of training, while checkpoints are written, reported and copied too."""
    pytest.importorskip("torch")
    kills, rng, known = effort.RANK_KILLS, random.Random(0), set()
    config = written(tmp_path, "torch", "overflow", "mixed_float16", 3 * kills, "pace = 0.3")
    out = tmp_path / config.stem
    options = ("--launcher", "ray", "--workers", "2", "--max-restarts", str(kills))
    command = [sys.executable, "-m", "unifiedamp", "train", str(config), "--out", str(out), *options]
    with open(tmp_path / "said", "w") as said:
        launcher = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, **QUIET, **PATIENT})
        try:
            for _ in range(kills):
                workers = workers_of(launcher, known)
                known |= {each.pid for each in workers}
                time.sleep(rng.uniform(0, 20))
                rng.choice(workers).kill()
            (tmp_path / "mark").touch()  # at full speed from here
            assert launcher.wait(900) == 0, (tmp_path / "said").read_text()[-3000:]
        finally:
            launcher.terminate()
            launcher.wait(60)
    config = written(tmp_path, "torch", "overflow", "mixed_float16", 3 * kills)
    done, other = train(tmp_path, config.rename(tmp_path / "unharmed.toml"), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = (json.loads((folder / "log.json").read_text()) for folder in (out, other))
    assert len(found["losses"]) == 15 * kills
    assert [found[name] for name in ("losses", "scales")] == [expected[name] for name in ("losses", "scales")]
    assert [row["skipped_steps"] for row in found["epochs"]] == [row["skipped_steps"] for row in expected["epochs"]]


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
