"""One run of the conformance suite by pytest, in this process."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from .streams import is_quiet

NO_TESTS = 5
"""pytest's exit code where none is selected."""
FAILURES = ("= FAILURES", "= ERRORS")
"""What the part of pytest's output begins with that tells what failed."""


def run_suite(backend: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Run the suite; return pytest's exit code, and the report as JSON.

    Args:
        backend: a name, or "all".
        arguments: further ones of pytest.
    """
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["--pyargs", "unifiedamp.conformance.suite", "--amp-backend", backend, "-q", "-p", "no:cacheprovider"]
        command += ["--amp-json", str(report), *arguments]
        code = _quietly(command) if is_quiet() else int(pytest.main(command))
        return code, report.read_text(encoding="utf-8") if report.exists() else "{}"


def _quietly(command: Sequence[str]) -> int:
    """Run pytest; print what failed, and the last line, when it has ended."""
    import pytest

    held = io.StringIO()
    with redirect_stdout(held):
        code = int(pytest.main([*command]))
    lines = held.getvalue().splitlines()
    failed = next((place for place, line in enumerate(lines) if any(mark in line for mark in FAILURES)), len(lines) - 1)
    sys.stdout.writelines(f"{line}\n" for line in lines[max(0, failed) :])
    return code
