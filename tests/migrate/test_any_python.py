"""Any Python file, and any file that is none, comes out whole: as it was, or as Python."""

from __future__ import annotations

import ast
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from migrating import LISTINGS, ROOT

from unifiedamp.errors import ConfigError
from unifiedamp.migrate.engine import migrate

OWN = [path for folder in ("benchmarks/native", "backends", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
WORDS = ("GradScaler", "autocast(", "set_global_policy")
NATIVE = [path for path in OWN if any(word in path.read_text("utf-8") for word in WORDS)]
OLD = [*sorted(LISTINGS.glob("*.py")), *sorted((ROOT / "tests" / "migrate" / "old").glob("*.py"))]
TEXTS = [path.read_text("utf-8") for path in OLD]


def checked(text: str) -> None:
    try:
        done = migrate("any.py", text.encode("utf-8", "surrogatepass"))
    except ConfigError:
        return
    if done.changed:
        ast.parse(done.after)
        again = migrate("any.py", done.after)
        assert not again.changed
    assert all(1 <= found.line <= text.count("\n") + 1 for found in done.findings)


@pytest.mark.parametrize("path", random.Random(0).sample(NATIVE, min(12, len(NATIVE))), ids=lambda path: path.name)
def test_files_of_this_repository(path):
    checked(path.read_text("utf-8"))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(TEXTS), st.data())
def test_listings_with_lines_missing_doubled_or_moved(text, data):
    """Patterns in any order and state of completeness."""
    lines = text.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.sampled_from(["drop", "double", "swap"]))
        if what == "drop" and len(lines) > 1:
            del lines[at]
        elif what == "double":
            lines.insert(at, lines[at])
        else:
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
    checked("".join(lines))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(TEXTS), st.integers(0, 10_000), st.text(max_size=6))
@example(TEXTS[0], 3, "\0")  # in a text or comment, where libcst reads what Python does not
def test_texts_cut_off_or_spoiled(text, at, what):
    at %= len(text)
    checked(text[:at])
    checked(text[:at] + what + text[at:])
