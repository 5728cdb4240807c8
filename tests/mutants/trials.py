"""Runs each mutant against the test that must fail: ``python -m mutants.trials REPORT.json``.

The suite is collected once. Each mutant is a fork of that process, and runs the tests of one name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from unifiedamp.conformance import plugin as kit

from . import registered
from .every import MUTANTS

SUITE = ["--pyargs", "unifiedamp.conformance.suite", "--amp-backend", "mutant", "--amp-peer", "mutant"]
SUITE += ["--amp-peer", "toy", "--amp-unmarked", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
LIMIT = 120


class Failed:
    """Names of the tests that failed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid.partition("::")[2].partition("[")[0])


class Trials:
    """In place of the tests, runs one fork for each mutant."""

    def __init__(self) -> None:
        self.failed: dict[str, list[str]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for name, (_, killed_by) in MUTANTS.items():
            items = [item for item in session.items if getattr(item, "originalname", "") == killed_by]
            assert items, f"the suite has no {killed_by}"
            self.failed[name] = in_a_fork(name, items)
        return True


def in_a_fork(name: str, items: list[pytest.Item]) -> list[str]:
    """Return the names of the tests that fail on a mutant; what its process dies of counts for none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "failed.json"
        process = os.fork()
        if not process:
            try:
                run(name, items, report)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        return json.loads(report.read_text()) if report.exists() else []


def run(name: str, items: list[pytest.Item], report: Path) -> None:
    """Run the tests on the mutant; the process is this mutant's alone."""
    signal.alarm(LIMIT)
    registered.choose(name)
    failed = Failed()
    config = items[0].config
    config.pluginmanager.register(failed)
    kit.mark(items)
    for item, following in zip(items, [*items[1:], None], strict=True):
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    report.write_text(json.dumps(failed.names))


if __name__ == "__main__":
    trials = Trials()
    code = pytest.main(SUITE, plugins=[trials])
    assert len(trials.failed) == len(MUTANTS), code
    Path(sys.argv[1]).write_text(json.dumps(trials.failed))
