"""Scripts that fail, hang or misbehave: each is a row with its own last words, and nothing is left running."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest
from script_files import RUN, TOY, write_script

ONE = "amp, model, optimizer = made()\n"
LOOP = ONE + "while True: step(amp, model, optimizer)\n"
FAILURES = {
    "crash": ("raise ValueError('no data today')", "ValueError: no data today"),
    "exit code": ("print('bad flag', file=sys.stderr); sys.exit(3)", "exit code 3"),
    "no session": ("print('nothing to do')", "it made no session"),
    "no step": (ONE, "never scaled a loss or called step"),
    "two sessions": (ONE + "step(amp, model, optimizer)\nother = made()\nstep(*other)", "two sessions"),
    "crash later": (
        ONE + "for _ in range(3): step(amp, model, optimizer)\nraise KeyError('batch 4')",
        "KeyError: 'batch 4'",
    ),
    "memory": (ONE + "step(amp, model, optimizer)\nraise MemoryError('cannot allocate')", "MemoryError"),
    "killed": (ONE + "step(amp, model, optimizer)\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "os._exit": (ONE + "step(amp, model, optimizer)\nos._exit(0)", "exit code 0"),
    "too few steps": (ONE + "for _ in range(3): step(amp, model, optimizer)", "at least 4"),
    "hang": (ONE + "print('waiting', file=sys.stderr, flush=True); time.sleep(600)", "no sign of life for 4 seconds"),
    "hang later": (ONE + "step(amp, model, optimizer)\ntime.sleep(600)", "no sign of life for 4 seconds"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_a_row_with_its_last_words(command, name):
    body, words = FAILURES[name]
    write_script("train.py", TOY, body)
    timeout = 4 if "hang" in name else 60
    done = command("compare", "--policies", "float32", "--steps", 10, "--rounds", 1, "--json", "--timeout",
                   timeout, "--", sys.executable, "train.py")  # fmt: skip
    (row,) = done.json["rows"]
    assert (done.code, row["state"]) == (1, "failed")
    assert words in row["reason"]


OBSTINATE = {
    "catches SystemExit": ONE + "while True:\n    try: step(amp, model, optimizer)\n    except SystemExit: pass",
    "catches everything": ONE + "while True:\n    try: step(amp, model, optimizer)\n    except BaseException: pass",
    "in a thread": ONE + "def train():\n    while True: step(amp, model, optimizer)\n"
    "worker = threading.Thread(target=train); worker.start(); worker.join(); time.sleep(600)",
    "goes on after the end": ONE + "try:\n    while True: step(amp, model, optimizer)\nfinally:\n    time.sleep(600)",
}


@pytest.mark.parametrize("name", OBSTINATE)
def test_the_run_ends_whatever_the_script_does(command, name):
    write_script("train.py", TOY, OBSTINATE[name])
    done = command("compare", "--policies", "float32", "--steps", 10, "--rounds", 1, "--json", *RUN)
    (row,) = done.json["rows"]
    assert (row["state"], len(row["losses"])) == ("done", 10), row
    assert not left_running()


def test_a_timeout_ends_all_that_the_script_started(command):
    """Also a process that has left the script's group and session."""
    sleeps = "[sys.executable, '-c', 'import time; time.sleep(600)', 'apart']"
    apart = f"import subprocess\nsubprocess.Popen({sleeps}, start_new_session=True)\n"
    write_script("train.py", TOY, apart, ONE, "step(amp, model, optimizer)", "time.sleep(600)")
    done = command("compare", "--policies", "float32", "--json", "--timeout", 4, "--", sys.executable, "train.py")
    assert done.json["rows"][0]["state"] == "failed"
    assert not left_running()


def left_running():
    """The processes of this folder's scripts that are still there, a moment later."""
    time.sleep(0.2)
    here = str(Path.cwd())
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.cwd() == here
                and process.pid != psutil.Process().pid
                and "train.py" in " ".join(process.cmdline())
            ):
                found.append(process)
            if "apart" in process.cmdline() and process.cwd() == here:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_one_row_fails_and_the_others_go_on(command):
    write_script("train.py", TOY, ONE, "if str(amp.policy) == 'mixed_float16': raise ValueError('not with float16')",
                 "while True: step(amp, model, optimizer)")  # fmt: skip
    done = command("compare", "--policies", "float32,mixed_float16,mixed_bfloat16", "--steps", 10, "--rounds", 1,
                   "--json", *RUN)  # fmt: skip
    assert [row["state"] for row in done.json["rows"]] == ["done", "failed", "done"]
    assert "ValueError: not with float16" in done.json["rows"][1]["reason"]
    assert done.code == 1
