"""The report of a conformance run: JSON for machines, a table for people."""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from unifiedamp.backend import this_processor
from unifiedamp.config import plugins

from ..machine import gpus
from .harness import load_harness

OUTCOMES = ("passed", "failed", "expected failures", "undeclared", "undeclared but works", "skipped")


class Reporter:
    """Collects outcomes per backend while pytest runs.

    Args:
        path: where the JSON report goes; None writes none.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self.counts: dict[str, Counter[str]] = {}
        self.failed: dict[str, list[str]] = {}
        self.features: dict[str, dict[str, list[str]]] = {}
        self.emulated: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one test's outcome; it may come from another process (pytest-xdist)."""
        properties = {key: str(value) for key, value in report.user_properties}
        backend = properties.get("amp-backend") or _backend_of_crashed(report)
        if backend and (report.when == "call" or not report.passed):
            self._note(backend, report, properties)

    def _note(self, backend: str, report: pytest.TestReport, properties: dict[str, str]) -> None:
        if "amp-undeclared" in properties:
            works = report.passed and not getattr(report, "wasxfail", "").startswith("[NOTRUN]")
            kind = "undeclared but works" if works else "undeclared"
            test = report.nodeid.rpartition("::")[2]
            self.features.setdefault(backend, {}).setdefault(properties["amp-undeclared"], []).append(test)
        elif "amp-expected" in properties and report.skipped:
            kind = "expected failures"
        else:
            kind = report.outcome
        self.counts.setdefault(backend, Counter())[kind] += 1
        policies = (str(value) for key, value in report.user_properties if key == "amp-emulated")
        self.emulated.setdefault(backend, Counter()).update(policies)
        if kind == "failed":
            self.failed.setdefault(backend, []).append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the JSON report."""
        if self._path:
            Path(self._path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        if not self.counts:
            return
        terminalreporter.section("unifiedamp conformance")
        width = max(map(len, self.counts))
        for backend, counts in sorted(self.counts.items()):
            told = ", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES if counts[kind])
            terminalreporter.line(f"{backend.ljust(width)}  {told}")
            for policy, count in sorted(self.emulated.get(backend, {}).items()):
                told = f"{count} tests ran {policy!r} emulated, which does not run natively on this machine"
                terminalreporter.line(f"{'':{width}}  {told}")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "schema": "unifiedamp-conformance",
            "version": 1,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "hardware": _hardware(),
            "versions": {
                "python": sys.version.split()[0],
                "unifiedamp": _version("unifiedamp"),
                "numpy": _version("numpy"),
            },
            "backends": {name: self._backend(name) for name in sorted(self.counts)},
        }

    def _backend(self, name: str) -> dict[str, Any]:
        plugin = plugins.load_plugin(name)
        capabilities = load_harness(name).capabilities()
        answers = {key: {"ok": answer.ok, "reason": answer.reason} for key, answer in capabilities.features.items()}
        policies = {key: asdict(answer) for key, answer in capabilities.policies.items()}
        return {
            "framework": plugin.framework,
            "framework_version": plugins.installed_version(plugin),
            "device": capabilities.device,
            "forms": list(load_harness(name).forms),
            "counts": {kind: self.counts[name][kind] for kind in OUTCOMES},
            "failed": self.failed.get(name, []),
            "emulated": dict(self.emulated.get(name, {})),
            "features": answers,
            "policies": policies,
        }


def _backend_of_crashed(report: pytest.TestReport) -> str:
    """Return the backend in the name of a test that ended its process, which leaves pytest-xdist nothing else to tell;
    empty for another test.
    """
    if report.when in ("setup", "call", "teardown"):
        return ""
    first = report.nodeid.partition("[")[2].rstrip("]")
    names = (name for name in plugins.backend_entry_points() if f"{first}-".startswith(f"{name}-"))
    return max(names, key=len, default="")


def _hardware() -> dict[str, Any]:
    processor = this_processor()
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": processor.name,
        "units": list(processor.units()),
        "gpus": [gpu.name for gpu in gpus()],
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
