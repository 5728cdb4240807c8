"""Runs the suite on a backend with one fault after another: which test notices it, and which faults none does.

The suite is collected once. Each fault is laid over the backend in a forked process, which runs the tests that look
at it first, then the others, the fast ones before the slow, and stops at the first that fails.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from unifiedamp.errors import ConfigError, UnsupportedError, nearest

from . import plugin as kit
from .driver import probe_run
from .faults import FAULTS, Fault
from .faults.laid import lay_over
from .harness import load_harness

KILLED, SURVIVED, LEFT_OUT = "killed", "survived", "not applicable"
LIMIT = 300.0
"""Seconds that the tests of one fault may take."""


@dataclass(frozen=True)
class Outcome:
    """What became of one fault.

    Attributes:
        name, about: the fault.
        state: "killed", "survived" or "not applicable".
        why: the test that noticed it, or why it does not apply; empty for one that survived.
    """

    name: str
    about: str
    state: str
    why: str = ""


@dataclass
class Report:
    """A run on one backend.

    Attributes:
        backend, forms: what was run.
        tests: how many passed on the backend as it is.
        failing: tests that failed on the backend as it is; they count for no fault.
        untested: reason → tests that do not run on this backend, or are not counted.
        outcomes: of each fault.
    """

    backend: str
    forms: list[str]
    tests: int = 0
    failing: list[str] = field(default_factory=list)
    untested: dict[str, list[str]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def survivors(self) -> list[Outcome]:
        """Faults that no test noticed."""
        return [each for each in self.outcomes if each.state == SURVIVED]


def chosen(names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names; all for none.

    Raises:
        ConfigError: a name is not known.
    """
    for name in names:
        if name not in FAULTS:
            raise ConfigError(f"no fault is named {name!r}{nearest(name, FAULTS)}")
    return [FAULTS[name] for name in names or FAULTS]


def run_faults(
    backend: str, faults: Sequence[Fault], forms: Sequence[str], told: Callable[[Outcome], None] | None = None
) -> Report:
    """Run the suite on ``backend`` with each fault.

    Args:
        backend: its name.
        faults: from :func:`chosen`.
        forms: forms of its harness; "eager" alone is fast.
        told: called with each outcome as it comes.

    Raises:
        UnsupportedError: the system cannot fork.
        ConfigError: the backend's harness lacks a form.
    """
    if not hasattr(os, "fork"):
        raise UnsupportedError("conformance --mutants forks a process for each fault; this system has no fork")
    known = load_harness(backend).forms
    for form in forms:
        if form not in known:
            raise ConfigError(f"backend {backend!r} is tested in no form {form!r}{nearest(form, known)}")
    trials = _Trials(Report(backend, list(forms)), faults, told)
    arguments = [
        "--pyargs",
        kit.SUITE,
        "--amp-backend",
        backend,
        "--amp-peer",
        backend,
        "--amp-trajectories",
        "20",
        "--amp-unmarked",
        "-s",
    ]
    arguments += [part for form in forms for part in ("--amp-form", form)]
    with tempfile.TemporaryDirectory() as folder:
        # Of its own, so that the options of a project in which this is run do not count.
        settings = Path(folder) / "pytest.ini"
        settings.write_text("[pytest]\n", encoding="utf-8")
        arguments += ["-c", str(settings), "-q", "-p", "no:cacheprovider"]
        # What pytest says of collecting is of no interest; what is told goes where it would go without.
        trials.out = sys.stdout
        with open(os.devnull, "w", encoding="utf-8") as silent, contextlib.redirect_stdout(silent):
            code = pytest.main(arguments, plugins=[trials])
    if not trials.done:
        raise ConfigError(f"the suite could not be collected for backend {backend!r} (pytest's exit code {int(code)})")
    return trials.report


class _Trials:
    """The pytest plugin that runs what was collected once for the backend as it is, and once for each fault."""

    def __init__(self, report: Report, faults: Sequence[Fault], told: Callable[[Outcome], None] | None) -> None:
        self.report, self.done = report, False
        self.out = sys.stdout
        self._faults, self._told = faults, told
        self._seconds: dict[str, float] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all trials in place of the tests."""
        items = session.items
        _import_what_a_step_does(self.report.backend)
        base = _in_a_fork(lambda: _run(items, stop=False), 10 * LIMIT)
        self._take(base)
        failing = set(self.report.failing)
        items = [item for item in items if item.nodeid not in failing]
        for fault in self._faults:
            outcome = self._try(fault, items, base["declared"])
            self.report.outcomes.append(outcome)
            if self._told is not None:
                with contextlib.redirect_stdout(self.out):
                    self._told(outcome)
        self.done = True
        return True

    def _take(self, base: dict[str, Any]) -> None:
        if base["died"]:
            raise UnsupportedError(
                f"the suite does not end on backend {self.report.backend!r} as it is: {base['died']}"
            )
        self.report.tests = len(base["passed"])
        self.report.failing = base["failed"]
        self.report.untested = base["untested"]
        self._seconds = base["seconds"]

    def _try(self, fault: Fault, items: Sequence[pytest.Item], declared: dict[str, str]) -> Outcome:
        if declared.get(fault.needs):
            return Outcome(fault.name, fault.about, LEFT_OUT, f"no {fault.needs}: {declared[fault.needs]}")

        def run() -> dict[str, Any]:
            lay_over(self.report.backend, fault)
            return _run(sorted(items, key=lambda item: self._rank(fault, item)), stop=True)

        found = _in_a_fork(run, LIMIT)
        why = found["died"] or next(iter(found["failed"]), "")
        return Outcome(fault.name, fault.about, KILLED if why else SURVIVED, why)

    def _rank(self, fault: Fault, item: pytest.Item) -> tuple[bool, float]:
        name = getattr(item, "originalname", item.name)
        return name not in fault.seen_by, self._seconds.get(item.nodeid, 0.0)


def _import_what_a_step_does(backend: str) -> None:
    """Import here what a first step would import anew in every fork; run no step, since threads do not survive one."""

    def modules() -> dict[str, Any]:
        before = set(sys.modules)
        run = probe_run(load_harness(backend))
        run.feed(1.0)
        return {**_NOTHING, "modules": sorted(set(sys.modules) - before)}

    for name in _in_a_fork(modules, LIMIT)["modules"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _run(items: Sequence[pytest.Item], *, stop: bool) -> dict[str, Any]:
    """Run tests and return what became of them; with ``stop``, to the first that fails."""
    seen = _Seen()
    items = list(items)
    config = items[0].config
    config.pluginmanager.register(seen, "unifiedamp-mutants-seen")
    kit.mark(items)
    for item, following in zip(items, [*items[1:], None], strict=True):
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if stop and seen.failed:
            break
    return seen.to_dict(kit.backend_of(items[0]) or "")


class _Seen:
    """Collects reports of tests."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._passed: list[str] = []
        self._untested: dict[str, list[str]] = defaultdict(list)
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one test's outcome."""
        properties = {key: str(value) for key, value in report.user_properties}
        if report.when == "call":
            self._seconds[report.nodeid] = report.duration
        if "amp-undeclared" in properties:
            if report.when == "call":
                self._untested[f"{properties['amp-undeclared']} is not declared"].append(report.nodeid)
        elif report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self._untested[_reason(report)].append(report.nodeid)
        elif report.when == "call":
            self._passed.append(report.nodeid)

    def to_dict(self, backend: str) -> dict[str, Any]:
        """Return plain values."""
        features = kit.declared(backend).features if backend else {}
        return {
            **_NOTHING,
            "failed": self.failed,
            "passed": self._passed,
            "untested": self._untested,
            "seconds": self._seconds,
            "declared": {name: "" if answer else answer.reason or "not declared" for name, answer in features.items()},
        }


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


_NOTHING: dict[str, Any] = {
    "died": "", "failed": [], "passed": [], "untested": {}, "seconds": {}, "declared": {}, "modules": [],
}  # fmt: skip


def _in_a_fork(run: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """Return what ``run`` returns in a separate process; "died" says how one ended that returned nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        process = os.fork()
        if not process:
            _child(run, path)
        died = _wait(process, limit)
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
    return {**_NOTHING, "died": died}


def _child(run: Callable[[], dict[str, Any]], path: Path) -> None:
    code = 1
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(run()), encoding="utf-8")
        beside.rename(path)
        code = 0
    finally:
        os._exit(code)


def _wait(process: int, limit: float) -> str:
    end = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return f"the process ended by signal {-code}" if code < 0 else f"the process ended with exit code {code}"
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return f"the tests did not end within {limit:.0f} seconds"
        time.sleep(0.02)
