"""``scripts/try.sh`` with an uv that installs nothing: what it says, in which order, and what it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
UV = """#!/usr/bin/env bash
echo "uv $*" >>calls
if [ "$1" = venv ]; then
  venv="${@: -1}"
  mkdir -p "$venv/bin" && ln -s "$PYTHON" "$venv/bin/python"
  printf '%s\\n' '#!/usr/bin/env bash' 'echo "unifiedamp $*" >>calls' 'echo "epoch 1"' >"$venv/bin/unifiedamp"
  chmod +x "$venv/bin/unifiedamp"
fi
[ "$1" != pip ] || { echo "Resolved 3 packages"; echo " + torch==0"; }
"""


@pytest.fixture
def attempt(tmp_path):
    """Runs the script in a copy of the project that has nothing else."""
    (tmp_path / "scripts").mkdir()
    for name in ("try.sh", "uv_settings.py"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(UV)
    (tmp_path / "bin/uv").chmod(0o755)

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(tmp_path / "scripts/try.sh"), *arguments], capture_output=True, text=True, timeout=120,
            check=False, env={**os.environ, "PATH": path, "PYTHON": sys.executable, **environment},
        )  # fmt: skip

    return run


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mxnet"])
def test_each_stage_is_announced_and_commands_follow(attempt, tmp_path, framework):
    done = attempt(framework, "--epochs", "1")
    assert done.returncode == 0, done.stderr
    stages = [line.partition("]")[0] for line in done.stdout.splitlines() if line.startswith("[")]
    assert stages == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert f"installing {framework}" in done.stdout
    assert "GB to download" in done.stdout
    assert "Resolved 3 packages" in done.stdout
    assert "torch==0" not in done.stdout, "names of packages are no news"
    trained = (tmp_path / "calls").read_text().splitlines()[-1]
    assert trained.startswith("unifiedamp train examples/configs/digits_conv_")
    assert trained.endswith(f"--backend {framework} --out runs/digits_conv-{framework} --epochs 1")
    named = trained.split()[2]
    assert (SCRIPTS.parent / named).exists()
    following = [line.split() for line in done.stdout.splitlines() if f"/try-{framework}/bin/unifiedamp" in line]
    assert [words[1] for words in following] == ["init", "train", "compare"]


def test_a_failure_is_shown_whole_with_its_exit_code(attempt, tmp_path):
    (tmp_path / "bin/uv").write_text(UV + 'if [ "$1" = pip ]; then echo "no such wheel" >&2; exit 7; fi\n')
    done = attempt("torch")
    assert done.returncode == 7
    assert "installing: failed (exit code 7)" in done.stderr
    assert "no such wheel" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("jax",), {}, "unknown framework 'jax': torch, tensorflow or mxnet"),
        (("torch",), {"PYTHON": "no-such-python"}, "there is no no-such-python: install Python 3.11"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(attempt, arguments, environment, said):
    done = attempt(*arguments, **environment)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_results_are_not_trained_over(attempt, tmp_path):
    (tmp_path / "runs/digits_conv-torch").mkdir(parents=True)
    (tmp_path / "runs/digits_conv-torch/checkpoint.npz").touch()
    done = attempt("torch")
    assert done.returncode == 2
    assert "curves.png" in done.stderr
    assert not (tmp_path / "calls").exists()
