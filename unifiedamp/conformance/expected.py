"""Expected failures: a TOML file beside a backend's harness, strict, each with a reason.

``expected_failures.toml``::

    [[expected]]
    test = "test_rules.py::test_hysteresis[torch-compiled]"
    reason = "what is known, and where it is being mended"
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from .harness import load_harness

FILE = "expected_failures.toml"


def read(backend: str) -> dict[str, str]:
    """Return test id → reason of one backend.

    Raises:
        pytest.UsageError: an entry lacks its test or its reason.
    """
    module_file = load_harness(backend).file()
    path = Path(module_file).with_name(FILE)
    if not path.exists():
        return {}
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("expected", [])
    for entry in entries:
        if not entry.get("test") or not entry.get("reason"):
            raise pytest.UsageError(f"{path}: every [[expected]] needs a test and a reason, got {entry!r}")
    return {entry["test"]: entry["reason"] for entry in entries}


def short_id(item: pytest.Item) -> str:
    """Return ``file.py::test[parameters]``, the same wherever the suite is installed."""
    return f"{Path(item.nodeid.partition('::')[0]).name}::{item.nodeid.partition('::')[2]}"


def apply(items: Sequence[pytest.Item], backend_of: Callable[[pytest.Item], str | None]) -> None:
    """Mark expected failures (strict) and refuse stale ones.

    Raises:
        pytest.UsageError: an entry names no collected test of a file that was collected whole.
    """
    backends = {name for name in map(backend_of, items) if name}
    by_id = {short_id(item): item for item in items}
    files = {name.partition("::")[0] for name in by_id}
    for backend in sorted(backends):
        for test, reason in read(backend).items():
            if test in by_id:
                by_id[test].user_properties.append(("amp-expected", reason))
                by_id[test].add_marker(pytest.mark.xfail(reason=reason, strict=True))
            elif test.partition("::")[0] in files and not _narrowed(items):
                raise pytest.UsageError(f"backend {backend!r}: expected failure {test!r} names no test; take it out")


def _narrowed(items: Sequence[pytest.Item]) -> bool:
    """Whether the user asked for single tests or forms, so that an absent id says nothing."""
    config = items[0].config
    forms = config.getoption("--amp-form") or config.getoption("--amp-sample")
    return bool(forms or config.option.keyword or config.option.markexpr or any("::" in arg for arg in config.args))
