"""Files that scripts write are what the scripts write now."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["make_vectors.py", "support_matrix.py"])
def test_committed_files_are_current(script):
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
