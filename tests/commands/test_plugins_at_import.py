"""Distributions whose backend plugin misbehaves when it is imported: each costs its own row, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_runs import MLP

DESCRIBED = """
from unifiedamp.backend import BackendPlugin, hookimpl

@hookimpl
def unifiedamp_backend({arguments}):
    return BackendPlugin({name!r}, "no_such_framework", (), "pip install it", None)
"""
AT_IMPORT = {
    "prints": 'print("noise"); import os; os.write(1, b"more noise")',
    "exits": "import sys; sys.exit(3)",
    "exits_hard": "import os; os._exit(3)",
    "hangs": "import time; time.sleep(600)",
    "forks": "import os; os.fork()",
    "forks_and_stays": "import os, time\nif os.fork() == 0: time.sleep(600)",
    "raises": 'raise ZeroDivisionError("a reason")',
    "closes": "import os, sys; os.close(0); sys.stdin.close()",
}
REASONS = {
    "prints": "no_such_framework is not installed: pip install it",
    "exits": "it ended the program (exit code 3)",
    "exits_hard": "its process ended with exit code 3",
    "hangs": "it said nothing new for 5 seconds and was stopped",
    "forks": "no_such_framework is not installed",
    "forks_and_stays": "no_such_framework is not installed",
    "raises": "is broken: a reason",
    "closes": "",
    "arguments": "is broken: Plugin",
}


def distribution(folder: Path, name: str, at_import: str, arguments: str = "") -> None:
    """Write a package with an entry point, as pip would unpack it."""
    (folder / f"plugin_{name}.py").write_text(at_import + DESCRIBED.format(name=name, arguments=arguments))
    info = folder / f"plugin_{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[unifiedamp.backends]\n{name} = plugin_{name}\n")


ONLY_MINE = """
from unifiedamp.config import plugins
every = plugins.backend_entry_points
plugins.backend_entry_points = lambda: {n: p for n, p in every().items() if n not in ("torch", "tensorflow", "mxnet")}
from unifiedamp.cli import app
app()
"""
"""The command without our own backends, which need not be asked again."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}
    line = [sys.executable, "-c", ONLY_MINE, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_doctor_tells_of_each(command, tmp_path):
    for name, at_import in AT_IMPORT.items():
        distribution(tmp_path, name, at_import)
    distribution(tmp_path, "arguments", "", "config")
    done = run(tmp_path, "doctor", "--json", "--timeout", "5")
    assert done.returncode == 1
    found = json.loads(done.stdout)["backends"]
    assert set(found) == set(REASONS)
    for name, reason in REASONS.items():
        assert reason in found[name]["reason"], name
        assert "\n" not in found[name]["reason"]


@pytest.mark.parametrize("name", ["prints", "exits", "raises"])
def test_other_commands_name_it_on_one_line(command, tmp_path, name):
    distribution(tmp_path, name, AT_IMPORT[name].partition("; import os")[0])
    done = run(tmp_path, "explain", MLP, "--backend", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert REASONS[name].partition(":")[0] in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("unifiedamp: ")
