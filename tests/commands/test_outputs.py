"""Outputs that cannot be written, and inputs that are no files, are one line and exit code 2, before any work."""

from __future__ import annotations

import html
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_runs import MLP

from unifiedamp.recording.reading import FORMAT, VERSION

FULL = Path("/dev/full")
UNWRITABLE = "/proc/unifiedamp"
"""Not even root can make anything there."""


@pytest.fixture
def there(command, tmp_path):
    """The folder in which commands are run, with a file, a folder, a program and a recording."""
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "program.py").write_text("import torch\n")
    header = {"kind": "header", "format": FORMAT, "version": VERSION, "time": 0.0, "unifiedamp": "0.1.0"}
    header |= {"backend": "toy", "framework": "toy", "framework_version": "1", "device": "cpu", "policy": "float32"}
    header |= {"compute_dtype": "float32", "loss_scale": "none", "scale": 1.0, "accumulate_steps": 1, "every": 1}
    (tmp_path / "run.jsonl").write_text(json.dumps(header | {"first_step": 0, "epsilons": []}) + "\n")
    return tmp_path


TRAIN = ["train", str(MLP), "--backend", "torch"]
CASES = {
    "train": [
        (["train", "folder.toml"], "folder.toml cannot be read: Is a directory"),
        ([*TRAIN, "--out", "file"], "--out file is a file; name a folder"),
        ([*TRAIN, "--out", "file/run"], "--out file/run cannot be written to: Not a directory"),
        ([*TRAIN, "--out", UNWRITABLE], f"--out {UNWRITABLE} cannot be written to"),
        ([*TRAIN, "--tensorboard", "file"], "--tensorboard file is a file; name a folder"),
        ([*TRAIN, "--tensorboard", UNWRITABLE], f"--tensorboard {UNWRITABLE} cannot be written to"),
        ([*TRAIN, "--record", "folder.jsonl"], "--record folder.jsonl is a folder; name a file"),
        ([*TRAIN, "--record", "file/run.jsonl"], "--record file is a file; name a folder"),
        ([*TRAIN, "--record", f"{UNWRITABLE}/run.jsonl"], "cannot be written to"),
        ([*TRAIN, "--resume", "--out", "nowhere"], "--resume: nowhere holds no checkpoint (checkpoint.npz)"),
        ([*TRAIN, "--epochs", "-1"], "invalid value for '--epochs'"),
        ([*TRAIN, "--record-every", "0"], "invalid value for '--record-every'"),
        ([*TRAIN, "--set", "data"], "--set takes key=value, got 'data'"),
    ],
    "report": [
        (["report", "folder.jsonl"], "folder.jsonl: Is a directory"),
        (["report", "run.jsonl", "--html", "folder.toml"], "--html folder.toml is a folder; name a file"),
        (["report", "run.jsonl", "--html", "no/such/x.html"], "--html no/such/x.html: there is no folder no/such"),
        (["report", "run.jsonl", "--html", f"{UNWRITABLE}.html"], "cannot be written"),
        (["report", "run.jsonl", "--png", "file"], "--png file is a file; name a folder"),
        (["report", "run.jsonl", "--png", UNWRITABLE], "cannot be written to"),
    ],
    "parity": [
        (["parity", MLP, "--backends", "a,b", "--out", "file"], "--out file is a file"),
        (["parity", MLP, "--backends", "a,b", "--out", UNWRITABLE], f"--out {UNWRITABLE} cannot be written to"),
    ],
    "init": [
        (["init", "program.py", "--backend", "torch"], "program.py is there already"),
        (["init", "model.txt"], "a workload is a Python file; name it model.py"),
        (["init", "my-model.py"], "Python cannot import a file of this name"),
        (["init", "no/such/model.py"], "FILE no/such/model.py: there is no folder no/such"),
        (["init", f"{UNWRITABLE}.py"], "cannot be written"),
    ],
    "explain": [(["explain", "folder.toml"], "folder.toml cannot be read: Is a directory")],
    "compare": [
        (["compare", "folder.toml"], "folder.toml cannot be read: Is a directory"),
        (["compare", MLP, "--out", "file"], "--out file is a file; name a folder"),
        (["compare", MLP, "--out", "file/out"], "--out file/out cannot be written to: Not a directory"),
        (["compare", MLP, "--out", UNWRITABLE], f"--out {UNWRITABLE} cannot be written to"),
        (["compare", MLP, "--set", "model", "--out", "out"], "--set takes key=value"),
    ],
    "tune": [
        (["tune", "folder.toml"], "folder.toml cannot be read: Is a directory"),
        (["tune", MLP, "--backend", "toy", "--out", "folder.toml"], "--out folder.toml is a folder"),
        (["tune", MLP, "--backend", "toy", "--out", f"{UNWRITABLE}.toml"], "cannot be written"),
        (["tune", MLP, "--backend", "toy", "--out", "no/such/x.toml"], "there is no folder no/such"),
        (["tune", MLP, "--backend", "toy", "--out", "file/x.toml"], "file/x.toml"),
    ],
    "migrate": [(["migrate", "no_such.py"], "no_such.py: No such file or directory")],
    "conformance": [
        (["conformance", "toy", "--report", "folder.toml"], "--report folder.toml is a folder; name a file"),
        (["conformance", "toy", "--report", "no/such/x.json"], "there is no folder no/such"),
        (["conformance", "toy", "--report", f"{UNWRITABLE}.json"], "cannot be written"),
        (["conformance", "toy", "--trajectories", "0"], "invalid value for '--trajectories'"),
        (["conformance", "toy", "--soak", "-1"], "invalid value for '--soak'"),
    ],
}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        pytest.param(arguments, wanted, id=f"{name}-{number}")
        for name, cases in CASES.items()
        for number, (arguments, wanted) in enumerate(cases)
    ],
)
def test_before_any_work(there, command, fake, monkeypatch, arguments, wanted):
    def work(*_):
        raise AssertionError("work was done first")

    monkeypatch.setattr("unifiedamp.workloads.training.loop.make_run", work)
    # The package's names ``compare`` and ``tune`` are the commands.
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.compare"), "run_all", work)
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.tune"), "tune_all", work)
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.parity"), "run_all", work)
    monkeypatch.setattr("unifiedamp.config.plugins.load_backend", lambda name: None)
    done = command(*arguments)
    assert done.code == 2, done
    assert wanted in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize(
    "arguments",
    [["report", "run.jsonl"], ["report", "run.jsonl", "--json"], ["migrate", "program.py"],
     ["explain", "--help"]],
    ids=" ".join,
)  # fmt: skip
def test_a_full_disk_behind_standard_output(there, arguments):
    with FULL.open("w") as full:
        done = run(arguments, stdout=full)
    assert done.returncode == 2, done
    assert done.stderr == "unifiedamp: output: No space left on device\n"


def test_a_reader_that_has_gone(there):
    read, write = os.pipe()
    os.close(read)
    done = run(["report", "run.jsonl"], stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def run(arguments, **files):
    line = [sys.executable, "-c", "from unifiedamp.cli import app; app()", *arguments]
    return subprocess.run(line, stderr=subprocess.PIPE, text=True, timeout=120, check=False, **files)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
from unifiedamp.cli import app
app(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "arguments",
    [["report", "run.jsonl", "--html", "page.html"], ["migrate", "amp.py", "--write"]],
    ids=" ".join,
)
def test_a_disk_that_is_full_in_the_middle(there, arguments):
    """A limit on the size of files stands for the full disk."""
    long = "x = 1  # a long line, so that the file is larger than the limit\n" * 1000
    code = "import torch\n\nscaler = torch.cuda.amp.GradScaler()\n" + long
    Path("amp.py").write_text(code)
    line = [sys.executable, "-c", LIMITED.format(size=512), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    if "migrate" in arguments and "written" in done.stdout:
        pytest.fail("it was written beyond the limit")
    assert Path("amp.py").read_text() == code
    assert [each.name for each in there.iterdir() if each.name.startswith(".")] == []
    if "report" in arguments:
        assert done.returncode == 2
        assert done.stderr == "unifiedamp: --html page.html cannot be written: File too large\n"


def test_nothing_selected(command, monkeypatch):
    monkeypatch.setattr("unifiedamp.config.plugins.load_backend", lambda name: None)
    done = command.apart("conformance", "torch", "-k", "no_test_has_this_name")
    assert done.code == 2
    assert done.err == "unifiedamp: no test is selected by -k no_test_has_this_name\n"


def imports(backend):
    """Whether the backend and its framework can be imported here."""
    code = f"from unifiedamp.config import plugins; plugins.load_backend({backend!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("variable", [{"MPLBACKEND": "no_such_backend"}])
def test_a_picture_that_cannot_be_drawn_costs_nothing_else(command, backend, monkeypatch, variable):
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    code = [sys.executable, "-c", "from unifiedamp.cli import app; app()"]
    arguments = ["train", str(MLP), "--backend", backend, "--policy", "float32", "--epochs", "1"]
    arguments += ["--compile", "off", "--out", "run"]
    done = subprocess.run([*code, *arguments], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == 2:  # Keras 3 imports matplotlib, and so TensorFlow fails to: said before any work
        assert not imports(backend)
        assert "is installed but fails to import" in done.stderr
        assert not Path("run").exists()
        return
    assert done.returncode == 0, done.stderr
    assert "no picture of loss and scale: " in done.stdout
    assert "no_such_backend" in done.stdout
    assert Path("run/checkpoint.npz").exists()
    assert "log, checkpoint: run" in done.stdout


def test_a_page_without_pictures_says_why(command, fake, monkeypatch):
    def fail(*_):
        raise ValueError("'no_such_backend' is not a valid value for backend")

    monkeypatch.setattr("unifiedamp.workloads.compare.plots.drawings", fail)
    done = command("compare", MLP, "--out", "out")
    assert done.code == 0
    text = Path("out/compare.html").read_text()
    why = "ValueError: 'no_such_backend' is not a valid value for backend"
    assert f"No plots: {why}." in html.unescape(text)
    assert done.err.splitlines()[-1] == f"unifiedamp: warning: compare.html has no plots: {why}"
