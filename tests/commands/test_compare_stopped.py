"""``unifiedamp compare`` stopped in the middle: finished rows are kept, and no process is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where the tests were started with &
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
