"""``amp.skip_if`` over the workers of a distributed kvstore: real processes on this host."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("dist_workers.py")
ROLES = ("scheduler", "server", "worker", "worker")
SECONDS = 180


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_workers(folder):
    """Return what each worker wrote; all processes have ended then."""
    common = {
        **os.environ, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()), "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2", "DMLC_NODE_HOST": "127.0.0.1", "RESULTS": str(folder), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    numbers = (0, 0, 0, 1)
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)], env={**common, "DMLC_ROLE": role, "RANK": str(number)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for role, number in zip(ROLES, numbers, strict=True)
    ]  # fmt: skip
    end, texts = time.monotonic() + SECONDS, []
    try:
        for process in processes[2:]:
            texts.append(process.communicate(timeout=max(1.0, end - time.monotonic()))[1])
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=10)
    assert [process.returncode for process in processes[2:]] == [0, 0], texts
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]


def test_a_condition_on_any_worker_drops_the_step_on_all(tmp_path):
    first, second = run_workers(tmp_path)
    assert first == second
    assert first == [
        ["applied", 0.5, 1], ["discarded", 0.5, 1], ["discarded", 0.5, 1], ["discarded", 0.5, 1], ["applied", 0.0, 2],
    ]  # fmt: skip
