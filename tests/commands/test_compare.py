"""``unifiedamp compare``: what a run gives on every backend, and what happens when runs fail (with stand-in runs)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from command_runs import HERE, a_mixed_policy, installed
from unifiedamp_examples.recipe import train
from unifiedamp_examples.settings import read_settings

import unifiedamp as ua
from unifiedamp import machine
from unifiedamp.recipes import find_config
from unifiedamp.workers import WorkerError
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
        pytest.skip(f"every preset runs on {backend} here")
    done = command("compare", "digits_mlp", "--backends", backend, "--policies", refused[0], "--json")
    assert done.code == 1
    (row,) = done.json["rows"]
    assert row["state"] == "refused"
    assert row["reason"]


def test_what_does_not_fit_is_an_answer(backend, tmp_path):
    """A memory limit far below what a batch needs: the run says that it does not fit, or its process dies of it."""
    from unifiedamp.compare.rows import Task
    from unifiedamp.compare.run import Options, begin, start_job

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
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MemoryError" in run.stderr
    assert machine.peak_process_memory() > 2**20


# -- how runs are put together, with stand-ins -------------------------------------------------------------------------


def rows_of(done):
    return {row["policy"]: row for row in done.json["rows"]}


def test_each_failure_costs_its_own_row(command, fake):
    done = command("compare", "digits_conv", "--rounds", 2, "--json", "--policies",
                   "float32,mixed_bfloat16,bfloat16,float16", "--policies", "mixed_float16;ops=exp:float32",
                   "--policies", "mixed_float16;layers=x:float32")  # fmt: skip
    rows = rows_of(done)
    assert done.code == 1
    assert rows["float32"]["state"] == rows["mixed_bfloat16"]["state"] == "done"
    assert rows["bfloat16"]["state"] == "failed"
    assert "SIGKILL" in rows["bfloat16"]["reason"]
    assert (rows["float16"]["state"], rows["float16"]["reason"]) == ("refused", "no float16 here")
    exhausted, memory = (row for name, row in rows.items() if name.startswith("mixed_float16;"))
    assert (exhausted["state"], exhausted["reason"]) == ("failed", "exhausted")
    assert (memory["state"], memory["reason"]) == ("failed", "out of memory")
    assert rows["mixed_bfloat16"]["ratio"] == pytest.approx(2.0)
    assert rows["mixed_bfloat16"]["samples_per_second"] == pytest.approx(200.0)
    assert rows["float32"]["notes"] == ["a note"]
    (said,) = done.json["advice"]
    assert said.endswith("mixed_bfloat16: 2.0x faster than float32, accuracy +1.0 points: use it")


def test_refused_rows_alone_are_no_failure_beside_finished_ones(command, fake):
    assert command("compare", "digits_conv", "--policies", "float32,float16", "--rounds", 1).code == 0
    assert command("compare", "digits_conv", "--policies", "float16", "--rounds", 1).code == 1


def test_the_largest_batch_size_is_found_also_over_crashes(command, fake):
    done = command("compare", "digits_conv", "--policies", "float32,mixed_bfloat16,mixed_float16", "--rounds", 1,
                   "--find-batch-size", "--json")  # fmt: skip
    sizes = {name: row["batch_size"] for name, row in rows_of(done).items()}
    assert 100 - 8 < sizes["float32"] <= 100
    assert 200 - 8 < sizes["mixed_bfloat16"] <= 200
    assert sizes["mixed_float16"] == 1437, "as many as there are samples"
    done = command("compare", "digits_conv", "--policies", "mixed_float16", "--rounds", 1, "--find-batch-size",
                   "--max-batch-size", 150, "--batch-sizes", "16,32", "--json")  # fmt: skip
    assert [row["batch_size"] for row in done.json["rows"]] == [16, 32, 150]


def test_every_combination_is_a_row(command, fake):
    done = command("compare", "digits_conv", "--backends", "toy,other", "--policies", "float32,mixed_bfloat16",
                   "--compile", "off,max", "--batch-sizes", "8,16", "--rounds", 1, "--json")  # fmt: skip
    keys = [(r["backend"], r["compile"], r["batch_size"], r["policy"]) for r in done.json["rows"]]
    assert len(set(keys)) == 16
    assert len(done.json["advice"]) == 8


def test_the_files_hold_what_is_printed(command, fake):
    done = command("compare", "digits_conv", "--policies", "float32,mixed_bfloat16", "--rounds", 1, "--profile")
    folder = Path("runs/compare-digits_conv")
    saved = json.loads((folder / "compare.json").read_text())
    page = (folder / "compare.md").read_text()
    assert saved["schema"] == "unifiedamp-compare"
    assert {"machine", "versions", "date", "command"} <= set(saved)
    for row in saved["rows"]:
        line = next(line for line in page.splitlines() if f"| {row['policy']} |" in line)
        assert f"{row['accuracy']:.2%}" in line
        assert "1024 MiB" in line
        assert "75% in Tensor Cores" in line
        assert row["tensor_cores"]["share"] == 0.75
        assert row["losses"] == [2.0, None, 1.0]
    assert saved["advice"][0] in page
    assert saved["advice"][0] in done.out


def test_without_tensor_cores_profile_says_so_in_one_line(command, backend):
    if ua.available_backends()[backend].capabilities.feature("kernel_profile"):
        pytest.skip("there is a GPU")
    done = command("compare", "digits_mlp", "--backends", backend, "--policies", "float32", "--compile", "off",
                   "--epochs", 1, "--samples", 64, "--batch-sizes", 32, "--rounds", 1, "--profile")  # fmt: skip
    said = [line for line in done.out.splitlines() if line.startswith("Tensor Cores")]
    assert len(said) == 1
    assert said[0].startswith(f"Tensor Cores of {backend}: none to look at, ")


class Page(HTMLParser):
    """Collects tags and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words += data


def test_the_page_needs_nothing_else(command, fake):
    command("compare", "digits_conv", "--policies", "float32,mixed_bfloat16", "--rounds", 1)
    page = Page((Path("runs/compare-digits_conv") / "compare.html").read_text())
    assert "script" not in page.tags
    assert all(reference.startswith("data:") for reference in page.references)
    assert page.tags.count("img") == 3, "speeds, losses and scales"
    assert page.tags.count("tr") == 3
    assert "2.00 (2.00-2.00)" in page.words


def test_pictures_show_the_rows(command, fake):
    from unifiedamp.compare.plots import pictures
    from unifiedamp.compare.rows import Row, Task

    curves = {"losses": [1.0, None, 0.5], "scales": [[1, 2.0, 0], [2, 4.0, 0]]}
    rows = [
        Row(Task("torch", name, "off", 8), batch_size=8, rates=[1.0, 2.0], samples_per_second=1.5, ratio=1.0, **curves)
        for name in ("float32", "mixed_float16")
    ]
    drawn = pictures(rows)
    assert list(drawn) == ["Samples per second", "Loss", "Loss scale"]
    for svg in drawn.values():
        assert all(f"torch {row.task.policy}" in svg for row in rows), "the text is text"
    rows[0].scales = rows[1].scales = [[1, 1.0, 0]]
    assert list(pictures(rows)) == ["Samples per second", "Loss"], "a scale that is always 1 is no picture"


def test_without_matplotlib_the_page_says_so(command, fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command("compare", "digits_conv", "--policies", "float32", "--rounds", 1)
    assert done.code == 0
    text = (Path("runs/compare-digits_conv") / "compare.html").read_text()
    assert "matplotlib is not installed (pip install &#x27;unifiedamp[examples]&#x27;)" in text


def test_what_comes_from_outside_is_escaped(command, fake, tmp_path):
    from unifiedamp.compare.page import html
    from unifiedamp.compare.rows import Row, Task

    about = dict.fromkeys(("title", "machine", "versions", "date", "command"), "<b>&")
    text = html([Row(Task("<x>", "float32", "off", 1), "failed", "<script>alert(1)</script>")], about, ["<i>"])
    assert "<script>" not in text
    assert "<x>" not in text
    assert "<b>" not in text
    assert "<i>" not in text


CODE = """
import sys
from unifiedamp.compare import run
from unifiedamp.cli import app, choices
from unifiedamp.workers import Worker
run.start_job = lambda _: Worker("fake_job:make")
choices.backends = lambda items: ["toy"]
app(sys.argv[1:])
"""


def test_ctrl_c_leaves_finished_rows_on_disk(tmp_path, command):
    """The first run is trained, the second hangs: an interrupt ends the command, and no process is left."""
    env = {**os.environ, "FAKE_HANGS": "mixed_float16"}
    arguments = ["compare", "digits_conv", "--policies", "float32,mixed_float16", "--batch-sizes", "8,16"]
    arguments += ["--rounds", "1", "--out", str(tmp_path / "out")]
    saved = tmp_path / "out" / "compare.json"
    with subprocess.Popen([sys.executable, "-c", CODE, *arguments], env=env, stderr=subprocess.PIPE, text=True) as run:
        wait(lambda: saved.exists() and "trained" in states(saved))
        children = children_of(run.pid)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    assert states(saved)[0] == "trained"
    assert json.loads(saved.read_text())["rows"][0]["accuracy"] == 0.9
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    assert (tmp_path / "out" / "compare.html").read_text().count("<tr") == 5


def test_no_run_outlives_a_command_that_is_killed(tmp_path, command):
    env = {**os.environ, "FAKE_HANGS": "float32"}
    arguments = ["compare", "digits_conv", "--policies", "float32", "--out", str(tmp_path / "out")]
    with subprocess.Popen([sys.executable, "-c", CODE, *arguments], env=env, stderr=subprocess.PIPE, text=True) as run:
        wait(lambda: children_of(run.pid))
        children = children_of(run.pid)
        run.kill()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def states(path):
    return [row["state"] for row in json.loads(path.read_text())["rows"]]


def children_of(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout
    return re.findall(r"\d+", found)


def wait(reached, seconds=60):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


# -- parity ------------------------------------------------------------------------------------------------------------

FAULTY = """
from unifiedamp.compare import job

def make(tell):
    handle = job.make(tell)
    def wrapped(request):
        answer = handle(request)
        if request["do"] == "begin" and request["amp"]["backend"] == "torch":
            weight = [p for p in wrapped.job._run.model.parameters() if p.dim() == 2][1]
            weight.register_hook(lambda gradient: gradient * {factor})
        return answer
    class Kept(job.Job):
        def __init__(self, *args):
            super().__init__(*args)
            wrapped.job = self
    job.Job, before = Kept, job.Job
    try:
        handle = job.make(tell)
    finally:
        job.Job = before
    return wrapped
"""

needs_two = pytest.mark.skipif(len(installed()) < 2, reason="one framework has no other to be compared with")
needs_torch = pytest.mark.skipif("torch" not in installed() or len(installed()) < 2, reason="plants its fault in torch")


@needs_two
def test_backends_do_not_part_in_float32(command):
    done = command("compare", "digits_mlp", "--parity", "--policies", "float32", "--parity-steps", 3, "--compile",
                   "off", "--out", "out", "--json")  # fmt: skip
    assert done.code == 0, done.out
    pairs = len(installed()) * (len(installed()) - 1) // 2
    assert len(done.json) == pairs
    for row in done.json:
        assert row["parted"] is None
        assert row["dtype"] == "float32"
        # Near enough to be computed on, and by different libraries.
        assert 0 < row["closest"]["distance"] < row["closest"]["allowed"] < 1e-3
    assert json.loads((Path("out") / "parity.json").read_text()) == done.json


@needs_torch
@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_a_planted_fault_is_named_by_step_and_layer(command, monkeypatch, tmp_path, factor):
    """torch's gradient of the second dense layer is 1 % off: found there in step 1, before anything it spoils."""
    (tmp_path / "faulty.py").write_text(FAULTY.replace("{factor}", str(factor)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("unifiedamp.compare.run.JOB", "faulty:make")
    other = next(name for name in installed() if name != "torch")
    done = command("compare", "digits_mlp", "--parity", "--backends", f"torch,{other}", "--policies", "float32",
                   "--parity-steps", 2, "--compile", "off", "--json")  # fmt: skip
    assert done.code == 1
    (row,) = done.json
    parted = row["parted"]
    assert (parted["step"], parted["layer"], parted["what"]) == (1, "dense2.kernel", "gradient")
    assert parted["distance"] == pytest.approx(abs(1 - factor) / max(1.0, factor), rel=1e-3)


def test_recipe_predictions_are_what_accuracy_counts(backend, tmp_path):
    settings = read_settings(find_config("digits_mlp"), tmp_path, amp={"backend": backend, "policy": "float32"})
    run, data = recipe.make_run(settings)
    predicted = recipe.predict(run.amp, run.kit, run.model, data)
    assert predicted.shape == (360,)
    assert recipe.accuracy(run.amp, run.kit, run.model, data) == np.mean(predicted == data.test_labels)
    assert len(data.first(7).train_labels) == 7
    assert len(data.first(7).test_labels) == 360


assert HERE.name == "commands"
