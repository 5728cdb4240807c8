"""The page for backend authors, followed to the letter in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "write-a-backend.md"


def test_the_suite_starts_on_what_the_page_says(tmp_path):
    backend, test, conftest = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(backend.splitlines()) < 60
    for name, text in (("mybackend.py", backend), ("test_mine.py", test), ("conftest.py", conftest)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "wrong_objects or bad_accumulate or explain_names"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "9 passed" in run.stdout, run.stdout + run.stderr
    assert "mybackend.MyBackend has no explain yet. Return the resolved plan" in run.stdout
