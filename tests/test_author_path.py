"""The page for backend authors, followed to the letter in an empty folder."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

from unifiedamp.conformance.ranks.cases import cases_of
from unifiedamp.conformance.suite.test_ranks import follows_the_oracle

PAGE = Path(__file__).parents[1] / "docs" / "write-a-backend.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_suite_starts_on_what_the_page_says(tmp_path):
    backend, test, conftest, _ = blocks()
    assert len(backend.splitlines()) < 60
    for name, text in (("mybackend.py", backend), ("test_mine.py", test), ("conftest.py", conftest)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "wrong_objects or bad_accumulate or explain_names"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "9 passed" in run.stdout, run.stdout + run.stderr
    assert "mybackend.MyBackend has no explain yet. Return the resolved plan" in run.stdout


RANKS = """
import toy.registered
from toy.rank_side import ToySide as MySide
from unifiedamp.conformance.harness import Harness
from unifiedamp.conformance.ranks import RankKind, RankProcesses, answers_of, play_all

def join(rank, count, folder):
    pass
"""


def test_the_chapter_on_ranks_runs_on_what_the_page_says(tmp_path, monkeypatch):
    (tmp_path / "page_of_ranks.py").write_text(RANKS + blocks()[-1])
    monkeypatch.syspath_prepend(tmp_path)
    page = importlib.import_module("page_of_ranks")
    harness, (kind,) = page.MyHarness(), page.MyHarness.rank_kinds.values()
    assert kind.counts == (2, 4)
    topics = cases_of(kind, 2, 12)
    assert not topics["absent"]
    cases = [case for topic in topics.values() for case in topic]
    try:
        answers = harness.run_ranks("data parallel", 2, "eager", cases)
    finally:
        page.PROCESSES[2].close()
    for case in cases:
        follows_the_oracle(answers[case.name], case, kind, 2, case.scale.initial_scale)
