"""Runs that are killed or interrupted as processes: what is resumed follows the run that never was."""

from __future__ import annotations

import random
import signal
import subprocess
import time

import numpy as np
import pytest
from effort import KILLS
from workload_runs import MOVING, POISONED, finish, log_of, start, write_config

import unifiedamp as ua
from unifiedamp.checkpoint.sealed_file import load_checkpoint

DYING = "from crashes import Disk; Disk({place!r}).install()\n" + POISONED


@pytest.fixture
def training(backend, form, tmp_path):
    """Arguments of a run that saves often, and the log of one that nothing disturbs."""
    runs_low = ua.Amp(backend, "float32").capabilities.policies["mixed_bfloat16"]
    config = write_config(
        tmp_path,
        {"backend": backend, "policy": "mixed_bfloat16" if runs_low else "float32", "loss_scale": MOVING},
        model="mlp",
        epochs=4,
        checkpoint_every=3,
        log_every=1,
        compile=form == "compiled",
    )
    code, _, err = finish(start("train", config, "--out", tmp_path / "whole", code=POISONED, cwd=tmp_path))
    assert code == 0, err
    whole = log_of(tmp_path / "whole")
    assert whole["epochs"][-1]["skipped_steps"] == 4 * 4
    assert len({scale for _, scale, _ in whole["scales"]}) > 3
    return ("train", config, "--out", tmp_path / "killed"), whole


def resumed(arguments, code, **options):
    """Start the run, or go on with it where there is a checkpoint."""
    out = arguments[-1]
    more = ("--resume",) if (out / "checkpoint.npz").exists() else ()
    return start(*arguments, *more, code=code, cwd=out.parent, **options)


def ends_as(whole, arguments, **options):
    """Let the run end, and compare it with one that nothing disturbed."""
    code, _, err = finish(resumed(arguments, POISONED, **options))
    assert code == 0, err
    found = log_of(arguments[-1])
    assert found["scales"] == whole["scales"]
    losses = [np.array(log["losses"], float) for log in (found, whole)]  # null, where it overflowed, becomes nan
    np.testing.assert_allclose(*losses, rtol=1e-3)
    assert len(losses[0]) == 88


@pytest.mark.parametrize("form", ["compiled"])
def test_dying_at_a_checkpoint_the_scale_goes_its_way(training):
    """In two places, across frameworks; ``test_killed_training.py`` dies at every place, in a smaller training."""
    arguments, whole = training
    for place in (("within write", 5), ("before directory fsync", 7)):
        code, _, err = finish(resumed(arguments, DYING.format(place=place)))
        assert code == -signal.SIGKILL, err
        assert (arguments[-1] / "checkpoint.npz").exists()
    ends_as(whole, arguments, popen=subprocess.Popen)


@pytest.mark.skipif(not KILLS, reason="random kills belong to the full session; each place is died at above")
@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_killed_at_random_moments_the_scale_goes_its_way(training):
    """SIGKILL again and again: what is resumed follows the uninterrupted trajectory, overflows and all."""
    arguments, whole = training
    killed, rng, checkpoint = 0, random.Random(3), arguments[-1] / "checkpoint.npz"
    for _ in range(max(2, KILLS // 20)):
        process = resumed(arguments, POISONED)
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        killed += finish(process)[0] == -signal.SIGKILL
    assert killed >= 1
    ends_as(whole, arguments)


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_its_exit_code(backend, tmp_path, number, wanted):
    config = write_config(tmp_path, {"backend": backend, "policy": "float32"}, model="mlp", epochs=5000, log_every=1)
    process = start("train", config, "--out", tmp_path / "run", cwd=tmp_path)
    while process.poll() is None and not (tmp_path / "run" / "log.json").exists():
        time.sleep(0.05)
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == wanted, err
    assert "Traceback" not in out + err
    assert [each.name for each in (tmp_path / "run").iterdir() if each.name.startswith(".")] == []
    saved = load_checkpoint(tmp_path / "run" / "checkpoint.npz")
    assert len(saved.arrays["history/losses"]) == 22 * saved.meta["epoch"] + saved.meta["batch"]
