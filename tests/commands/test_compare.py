"""``unifiedamp compare`` on every backend: a row is what a run of the recipe gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from command_runs import a_mixed_policy
from unifiedamp_examples.recipe import train
from unifiedamp_examples.settings import read_settings

import unifiedamp as ua
from unifiedamp import machine
from unifiedamp.workloads.recipes import find_config
from unifiedamp.workloads.workers import WorkerError
from unifiedamp_examples import recipe

SCALED = "float32;loss_scale=dynamic(initial_scale=1024.0,growth_interval=2)"


class Silent:
    """A report that says nothing."""

    def begin(self, run):
        pass

    epoch = picture = begin

    def follow(self, batches, run, count):
        return batches


def test_a_row_is_what_the_recipe_gives(command, backend, tmp_path):
    """Losses, accuracy and scales are those of the recipe trained in this process with the same settings."""
    done = command("compare", "digits_mlp", "--backends", backend, "--policies", "float32", "--policies", SCALED,
                   "--compile", "off", "--epochs", 1, "--samples", 192, "--batch-sizes", 32, "--rounds", 2,
                   "--out", "out", "--json")  # fmt: skip
    assert done.code == 0, done.err
    plain, scaled = done.json["rows"]
    changes = {"epochs": 1, "samples": 192, "batch_size": 32, "compile": False}
    amp = {"backend": backend, "policy": SCALED}
    run = train(read_settings(find_config("digits_mlp"), tmp_path / "own", amp=amp, train=changes), Silent())
    np.testing.assert_allclose(scaled["losses"], run.history.losses, rtol=1e-4)
    assert scaled["accuracy"] == pytest.approx(run.history.epochs[-1]["accuracy"], abs=0.006)
    assert scaled["scale"] == run.amp.loss_scale == 1024.0 * 2  # six batches, two a step: three applied steps
    assert scaled["skipped_steps"] == 0
    assert scaled["applied_steps"] == 3
    assert scaled["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    for row in (plain, scaled):
        assert row["state"] == "done"
        assert row["peak_memory"] > 2**20
        assert row["samples_per_second"] > 0
        assert len(row["rates"]) == 2
        assert row["test_images"] == 360
        assert 0 <= row["f1"] <= 1
    assert plain["ratio"] == 1
    ratios = sorted(a / b for a, b in zip(scaled["rates"], plain["rates"], strict=True))
    assert (scaled["ratio_low"], scaled["ratio_high"]) == pytest.approx((ratios[0], ratios[1]))
    assert scaled["baseline"] == "float32, batch size 32"


def test_compiled_runs_and_the_largest_batch(command, backend):
    done = command("compare", "digits_mlp", "--backends", backend, "--policies", "float32", "--compile", "default",
                   "--epochs", 1, "--samples", 96, "--rounds", 1, "--find-batch-size", "--max-batch-size", 24,
                   "--out", "out", "--json")  # fmt: skip
    assert done.code == 0, done.err
    (row,) = done.json["rows"]
    assert row["largest_batch_size"]
    assert row["batch_size"] == 24
    assert row["compile"] == "default"
    assert row["samples_per_second"] > 0


def test_a_mixed_policy_that_cannot_run_says_so(command, backend):
    if a_mixed_policy(backend) == "mixed_bfloat16":
        refused = [name for name, ok in ua.available_backends()[backend].capabilities.policies.items() if not ok]
    else:
        refused = ["mixed_bfloat16"]
    if not refused:
        assert not ua.available_backends()[backend].capabilities.device.startswith("cpu")
        pytest.skip(f"every preset runs on {backend}'s GPU")
    done = command("compare", "digits_mlp", "--backends", backend, "--policies", refused[0], "--json")
    assert done.code == 1
    (row,) = done.json["rows"]
    assert row["state"] == "refused"
    assert row["reason"]


def test_what_does_not_fit_is_an_answer(backend, tmp_path):
    """A memory limit far below what a batch needs: the run says that it does not fit, or its process dies of it."""
    from unifiedamp.workloads.compare.rows import Task
    from unifiedamp.workloads.compare.run import Options, begin, start_job

    options = Options(find_config("digits_conv"))
    task = Task(backend, "float32", "off", 0)
    with start_job(backend) as worker:
        worker.ask(begin(options, task, 1, str(tmp_path)))
        assert worker.ask({"do": "fits", "batch_size": 8, "memory": None}) is True
        # 1437 images of 8x8 through 16 to 64 channels: tens of megabytes; the limit leaves nothing.
        assert tried(worker, {"do": "fits", "batch_size": 1437, "memory": 2**20}) in (False, "memory", "crash")


def tried(worker, request):
    try:
        return worker.ask(request)
    except WorkerError as error:
        return error.kind


def test_a_memory_limit_holds():
    code = "from unifiedamp import machine; machine.limit_memory(2**28); bytearray(2**29)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert "MemoryError" in run.stderr
    assert machine.peak_process_memory() > 2**20


def test_without_tensor_cores_profile_says_so_in_one_line(command, backend):
    capabilities = ua.available_backends()[backend].capabilities
    if capabilities.feature("kernel_profile"):
        assert not capabilities.device.startswith("cpu")
        pytest.skip("there is a GPU")
    done = command("compare", "digits_mlp", "--backends", backend, "--policies", "float32", "--compile", "off",
                   "--epochs", 1, "--samples", 64, "--batch-sizes", 32, "--rounds", 1, "--profile")  # fmt: skip
    said = [line for line in done.out.splitlines() if line.startswith("Tensor Cores")]
    assert len(said) == 1
    assert said[0].startswith(f"Tensor Cores of {backend}: not measured, ")


def test_recipe_predictions_are_what_accuracy_counts(backend, tmp_path):
    settings = read_settings(find_config("digits_mlp"), tmp_path, amp={"backend": backend, "policy": "float32"})
    run, data = recipe.make_run(settings)
    predicted = recipe.predict(run.amp, run.kit, run.model, data)
    assert predicted.shape == (360,)
    assert recipe.accuracy(run.amp, run.kit, run.model, data) == np.mean(predicted == data.test_labels)
    assert len(data.first(7).train_labels) == 7
    assert len(data.first(7).test_labels) == 360
