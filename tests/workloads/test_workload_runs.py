"""Whole runs: they learn, low precision costs no accuracy, and a run that is stopped goes on as if it never was."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from workload_runs import log_of, run, settings

import unifiedamp as ua
from unifiedamp.checkpoint.sealed_file import load_checkpoint
from unifiedamp.workloads.training import interrupt as interrupts


def test_a_run_leaves_a_log_a_picture_and_a_checkpoint(backend, tmp_path):
    done = run(tmp_path, backend, "mixed_bfloat16", model="mlp", epochs=2, log_every=5)
    out = done.settings.out
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.npz", "curves.png", "log.json"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    log = log_of(out)
    assert (log["backend"], log["policy"], log["settings"]["model"]) == (backend, "mixed_bfloat16", "mlp")
    assert len(log["losses"]) == 44
    assert [row[0] for row in log["scales"]] == [5, 10, 15, 20, 25, 30, 35, 40]
    for number, row in enumerate(log["epochs"]):
        assert row["epoch"] == number
        assert row["loss"] == pytest.approx(np.mean(log["losses"][22 * number : 22 * (number + 1)]))
        assert (row["loss_scale"], row["skipped_steps"]) == (1.0, 0)
        assert 0 < row["samples_per_second"] < 1e7
    assert log["epochs"][1]["scores"]["accuracy"] > 0.9
    assert load_checkpoint(out / "checkpoint.npz").meta["amp"] == done.amp.state_dict()


def test_accumulation_trains_on_the_mean_of_the_window(backend, tmp_path):
    """Two batches of 32 per step end where one batch of 64 does: batch norm aside, the gradient is the same."""
    options = {"model": "mlp", "clip_norm": 1.0}
    whole = run(tmp_path, backend, out="whole", batch_size=64, **options)
    halves = run(tmp_path, backend, out="halves", batch_size=32, amp={"accumulate_steps": 2}, **options)
    pairs = np.reshape(halves.history.losses, (-1, 2)).mean(1)
    np.testing.assert_allclose(pairs, whole.history.losses, rtol=2e-4)


@pytest.mark.parametrize("model", ["conv", "mlp"])
def test_mixed_bfloat16_is_as_accurate_as_float32(backend, model, tmp_path):
    rows, fast = {}, backend == "tensorflow"  # whose eager steps take several times as long
    for policy in ("float32", "mixed_bfloat16"):
        done = run(tmp_path, backend, policy, out=policy, model=model, epochs=10, learning_rate=0.02, compile=fast)
        rows[policy] = done.history.epochs[-1]["scores"]["accuracy"]
    assert rows["float32"] > 0.95
    assert abs(rows["mixed_bfloat16"] - rows["float32"]) <= 0.01


def test_mixed_bfloat16_accumulates_too(backend, tmp_path):
    done = run(tmp_path, backend, "mixed_bfloat16", model="mlp", epochs=3, amp={"accumulate_steps": 2})
    assert done.history.epochs[-1]["scores"]["accuracy"] > 0.9


def test_resume_inside_an_epoch_repeats_the_uninterrupted_run(backend, tmp_path, monkeypatch):
    options = {"model": "conv", "epochs": 2, "log_every": 1}
    whole = run(tmp_path, backend, out="whole", **options)

    stopped = settings(tmp_path, backend, out="stopped", **options)
    monkeypatch.setattr(interrupts.Interrupt, "asked", property(lambda self: stop()))
    seen = []

    def stop():
        seen.append(None)
        return signal.SIGINT if len(seen) == 7 else 0

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, backend, out="stopped", **options)
    monkeypatch.undo()
    assert load_checkpoint(stopped.out / "checkpoint.npz").meta["batch"] == 7
    resumed = run(tmp_path, backend, out="stopped", resume=True, **options)
    assert (whole.resumed_at, resumed.resumed_at) == (None, (0, 7))
    np.testing.assert_allclose(resumed.history.losses, whole.history.losses, rtol=1e-5)
    assert resumed.history.scales == whole.history.scales
    assert resumed.amp.state_dict() == whole.amp.state_dict()


def test_a_run_goes_on_under_another_backend(backend, other, tmp_path):
    """Weights, momentum, loss scale and counters all travel: float32 losses go on as in one framework."""
    scale = {"loss_scale": {"kind": "dynamic", "initial_scale": 64.0, "growth_interval": 5}}
    options = {"model": "conv", "amp": scale, "log_every": 1, "learning_rate": 0.02}
    whole = run(tmp_path, backend, out="whole", epochs=2, **options)
    run(tmp_path, backend, out="moved", epochs=1, **options)
    moved = run(tmp_path, other, out="moved", epochs=2, resume=True, **options)
    assert moved.amp.backend.name == other
    np.testing.assert_allclose(moved.history.losses, whole.history.losses, rtol=2e-3)
    assert moved.history.scales == whole.history.scales
    assert moved.amp.state_dict()["state"] == whole.amp.state_dict()["state"]
    assert [row["backend"] for row in moved.history.epochs] == [backend, other]


def test_a_run_without_scaling_asks_before_it_goes_on_with_it(backend, tmp_path):
    run(tmp_path, backend, "mixed_bfloat16", model="mlp")
    scaled = {"model": "mlp", "epochs": 2, "amp": {"loss_scale": "dynamic"}}
    with pytest.raises(ua.CheckpointError, match="restart_scale"):
        run(tmp_path, backend, "mixed_bfloat16", resume=True, **scaled)


def test_several_processes_of_a_launcher_are_refused(backend, tmp_path, monkeypatch):
    """Each would train on all data, and write the same folder."""
    if backend == "torch":
        pytest.skip("it joins them: test_workload_ranks")
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    reasons = "torchrun started 2 processes, and (TensorFlow joins those of TF_CONFIG|MXNet joins .* launch.py)"
    with pytest.raises(ua.UnsupportedError, match=reasons):
        run(tmp_path, backend, model="mlp", epochs=1)
    assert not list(tmp_path.rglob("checkpoint.npz"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run(tmp_path, backend, model="mlp", epochs=1).history.losses


def test_a_schedule_of_percentages_knows_the_length_of_the_run(backend, tmp_path):
    """Two epochs of 11 windows; a run of fewer steps is shorter."""
    amp = {"schedule": {"0": "float32", "50%": "mixed_bfloat16"}, "accumulate_steps": 2}
    done = run(tmp_path, backend, None, model="mlp", epochs=2, amp=amp)
    assert done.amp.schedule.steps == (0, 11)
    assert [row["policy"] for row in done.history.epochs] == ["mixed_bfloat16"] * 2
    assert done.amp.state_dict()["schedule"]["step"] == 22
    short = run(tmp_path, backend, None, out="short", model="mlp", epochs=2, steps=4, amp=amp)
    assert short.amp.schedule.steps == (0, 2)
