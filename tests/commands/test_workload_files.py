"""Users' own files through the commands: what they do wrong is one line, or a row, with the file's own line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_runs import installed

from unifiedamp.cli.init import starter

QUICK = ("--steps", 4, "--rounds", 1, "--out", "out", "--json")


def write(text, name="mine.py"):
    Path(name).write_text(text)
    return name


def changed(backend, before, after, name="mine.py"):
    text = starter(backend)
    assert before in text
    return write(text.replace(before, after), name)


def test_from_init_to_a_comparison_of_three_policies(command, backend):
    """The commands that a new user types, as they are printed."""
    done = command("init", "fresh.py", "--backend", backend)
    assert done.code == 0
    said = [line.strip().split() for line in done.out.splitlines() if line.startswith("  unifiedamp")]
    assert [line[1:3] for line in said] == [["train", "fresh.py"], ["compare", "fresh.py"], ["tune", "fresh.py"]]
    train = command.apart(*said[0][1:])
    assert train.code == 0, train.err
    assert "98." in train.out
    assert Path("runs/fresh/checkpoint.npz").exists()
    compare = command(*said[1][1:], *QUICK)
    rows = {row["policy"]: row for row in compare.json["rows"]}
    assert list(rows) == ["float32", "mixed_bfloat16", "mixed_float16"]
    assert rows["float32"]["state"] == "done"
    assert rows["float32"]["batch_size"] == 64
    assert 0 < rows["float32"]["accuracy"] <= 1
    assert {row["state"] for row in rows.values()} <= {"done", "refused"}
    assert {row["backend"] for row in rows.values()} == {backend}


@pytest.mark.parametrize("name", ["compare", "tune", "parity"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", "mine.py:1: not valid Python"),
        ("raise ValueError('no data here')", "mine.py:1 cannot be imported: ValueError: no data here"),
        ("import os; os.abort()", "mine.py, when imported: its process was killed by SIGABRT"),
        ("import time; time.sleep(600)", "mine.py, when imported: it said nothing new for 4 seconds and was stopped"),
        ("import time\nprint('loading the data', flush=True)\ntime.sleep(600)", "was stopped: loading the data"),
        ("class Mine: pass", "mine.py holds no workload"),
    ],
)
def test_a_file_that_is_no_workload_is_one_line(command, monkeypatch, name, text, said):
    seconds = 4 if "sleep" in text else 60
    monkeypatch.setattr("unifiedamp.workloads.describe.SHORTEST", seconds)
    done = command(name, write(text), "--timeout", seconds)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert said in done.err
    assert "mine" not in sys.modules
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("raise RuntimeError('my own words')", "RuntimeError: my own words (mine.py:"),
        ("import os; os.abort()", "SIGABRT"),
        ("import time; time.sleep(600)", "it said nothing new for 20 seconds"),
        ("return points", "the loss must be"),
    ],
)
def test_what_goes_wrong_in_a_loss_is_a_row(command, after, said):
    backend = installed()[0]
    path = changed(backend, "        points, labels = batch\n", f"        points, labels = batch\n        {after}\n")
    done = command("compare", path, "--policies", "float32", "--timeout", 20, *QUICK)
    assert done.code == 1
    (row,) = done.json["rows"]
    assert row["state"] in ("failed", "refused")
    assert said in row["reason"]


def test_a_comparison_without_evaluation_is_judged_by_the_loss(command, backend):
    path = changed(backend, "def evaluate", "def not_evaluate")
    done = command("compare", path, "--policies", "float32", *QUICK)
    (row,) = done.json["rows"]
    assert (row["state"], row["accuracy"], row["scores"]) == ("done", None, {})
    assert row["loss"] > 0


def test_a_score_of_any_name_has_its_column(command, backend):
    path = changed(backend, 'return {"accuracy": float(right.mean()), "samples": len(right)}', "return 3 * right.sum()")
    done = command("compare", path, "--policies", "float32", *QUICK)
    (row,) = done.json["rows"]
    assert row["scores"]["score"] > 3
    assert f"| {row['scores']['score']:.4g} |" in Path("out/compare.md").read_text()


def test_batch_sizes_need_a_setting(command, backend):
    path = changed(backend, "batch_size", "size_of_batches")
    done = command("compare", path, "--batch-sizes", 32)
    assert done.code == 2
    assert "sets the workload's setting 'batch_size', which mine.py does not have" in done.err
    done = command("compare", path, "--policies", "float32", *QUICK)
    assert done.json["rows"][0]["batch_size"] is None
    assert done.json["rows"][0]["state"] == "done"


def test_a_short_recording_is_a_page(command, backend):
    command("init", "fresh.py", "--backend", backend)
    done = command.apart("report", "fresh.py", "--steps", 7, "--every", 3, "--set", "hidden=16", "--json")
    assert done.code == 0, done.err
    assert Path("runs/report-fresh/report.html").exists()
    assert Path("runs/report-fresh/run.jsonl").read_text().count('"kind":"step"') == 3
    assert not Path("runs/fresh").exists()


def test_the_only_framework_that_a_file_imports_is_taken(command):
    """Several are installed, and the file names none."""
    for backend in installed():
        path = changed(backend, f'    backends = ("{backend}",)\n', "", f"only_{backend}.py")
        done = command.apart("train", path, "--steps", 2)
        assert done.code == 0, done.err
        assert f": {backend}, " in done.out
