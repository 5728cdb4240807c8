"""``unifiedamp compare`` stopped in the middle: finished rows are kept, and no process is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command_runs import CONV

from unifiedamp.output import files

CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where the tests were started with &
from unifiedamp.workloads.compare import run
from unifiedamp.cli import app, choices, named
from unifiedamp.workloads.describe import Description
from unifiedamp.workloads.workers import Worker
run.start_job = lambda _: Worker("fake_job:make")
choices.backends = lambda items: ["toy"]
named.describe = lambda *_: Description(name="none", settings={"batch_size": 64}, backends=None)
app(sys.argv[1:])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_finished_rows_on_disk(tmp_path, command, monkeypatch, number, code):
    """The first run is trained, the second hangs: a signal ends the command, and neither process nor folder is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "FAKE_HANGS": "mixed_float16"}
    arguments = ["compare", CONV, "--policies", "float32,mixed_float16", "--batch-sizes", "8,16"]
    arguments += ["--rounds", "1", "--out", str(tmp_path / "out")]
    saved = tmp_path / "out" / "compare.json"
    with subprocess.Popen([sys.executable, "-c", CODE, *arguments], env=env, stderr=subprocess.PIPE, text=True) as run:
        wait(lambda: saved.exists() and "trained" in states(saved))
        children = children_of(run.pid)
        assert left(tmp_path / "temporary")
        run.send_signal(number)
        assert run.wait(60) == code
        assert run.stderr.read() == ""
    assert left(tmp_path / "temporary") == []
    assert states(saved)[0] == "trained"
    assert json.loads(saved.read_text())["rows"][0]["accuracy"] == 0.9
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    assert (tmp_path / "out" / "compare.html").read_text().count("<tr") == 5


def test_no_run_outlives_a_command_that_is_killed(tmp_path, command):
    env = {**os.environ, "FAKE_HANGS": "float32"}
    arguments = ["compare", CONV, "--policies", "float32", "--out", str(tmp_path / "out")]
    with subprocess.Popen([sys.executable, "-c", CODE, *arguments], env=env, stderr=subprocess.PIPE, text=True) as run:
        wait(lambda: children_of(run.pid))
        children = children_of(run.pid)
        run.kill()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_the_next_start_removes_what_a_killed_one_left(tmp_path, command, monkeypatch):
    """Folders of dead processes alone: this one's, and those of other machines, stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    env = {**os.environ, "FAKE_HANGS": "float32"}
    arguments = ["compare", CONV, "--policies", "float32", "--out", str(tmp_path / "out")]
    with subprocess.Popen([sys.executable, "-c", CODE, *arguments], env=env, stderr=subprocess.PIPE, text=True) as run:
        wait(lambda: left(tmp_path / "temporary"))
        (killed,) = left(tmp_path / "temporary")
        files.remove_folders()
        assert left(tmp_path / "temporary") == [killed], "it is alive"
        run.kill()
    with files.temporary_folder() as mine:
        stays = {Path(mine).name, f"unifiedamp-elsewhere-{run.pid}-x"}
        (tmp_path / "temporary" / f"unifiedamp-elsewhere-{run.pid}-x").mkdir()
        files.remove_folders()
        assert set(left(tmp_path / "temporary")) == stays


def left(folder):
    return [each.name for each in folder.glob("unifiedamp-*")]


def states(path):
    return [row["state"] for row in json.loads(path.read_text())["rows"]]


def children_of(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    return re.findall(r"\d+", found)


def wait(reached, seconds=60):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
