"""Each block of Python on the pages under docs/ runs, or is a part of a program that runs elsewhere in the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doc_setups import FRAMEWORKS, SETUPS

from unifiedamp.conformance.plugin import peers

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TOKEN = re.compile(
    r"^<!-- setup: ([\w ]+) -->$|^<!-- part of: ([\w/.]+) -->$|^( *)```python[^\n]*\n(.*?)^\3```",
    re.MULTILINE | re.DOTALL,
)
ELSEWHERE = {"write-a-backend.md": "test_author_path.py", "trainers.md": "integrations/test_page.py"}
"""Pages whose code another test of this folder runs."""
FRAMEWORK_OF = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "mxnet": "mxnet"}
"""Module → the framework that it belongs to."""
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if "```python" in page.read_text(encoding="utf-8") and page.name not in ELSEWHERE
]


def parts(page: Path) -> list[tuple[str, str, str]]:
    """Return the page's blocks as (setup, the program it is a part of or "", text)."""
    found, setup, program = [], "torch", ""
    for named, whole, indent, text in TOKEN.findall(page.read_text(encoding="utf-8")):
        if text:
            lines = [line.removeprefix(indent) for line in text.splitlines(keepends=True)]
            found.append((setup, program, "".join(lines)))
            program = ""
        setup, program = named or setup, whole or program
    return found


def blocks() -> list[object]:
    """Return (page, setup) for each setup that a page uses, in their order."""
    found = []
    for page in PAGES:
        for setup in dict.fromkeys(
            setup for setup, program, text in parts(page) if not program and "--8<--" not in text
        ):
            found.append(pytest.param(page, setup, id=f"{page.relative_to(DOCS)}-{setup}"))
    return found


@pytest.mark.parametrize(("page", "setup"), blocks())
def test_the_blocks_of_a_page_run(page, setup, tmp_path, monkeypatch):
    if FRAMEWORKS[setup] not in peers():
        pytest.skip(f"{FRAMEWORKS[setup]} is not installed here")
    monkeypatch.chdir(tmp_path)
    names = SETUPS[setup]()
    cleanup = names.pop("cleanup", None)
    try:
        for used, program, text in parts(page):
            if used == setup and not program and "--8<--" not in text:
                exec(compile(text, str(page), "exec"), names)
    finally:
        if cleanup is not None:
            cleanup()
        if hasattr(names.get("amp"), "close"):
            names["amp"].close()


@pytest.mark.parametrize(("page", "setup"), blocks())
def test_a_setup_is_of_the_framework_that_its_blocks_import(page, setup):
    for used, program, text in parts(page):
        if used == setup and not program and "--8<--" not in text:
            assert imported_frameworks(text) <= {FRAMEWORKS[setup]}, f"{page.name} names setup {setup!r}:\n{text}"


def imported_frameworks(text: str) -> set[str]:
    """Return the frameworks whose modules a program imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {FRAMEWORK_OF[root] for name in names if (root := name.partition(".")[0]) in FRAMEWORK_OF}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(DOCS)) for page in PAGES])
def test_parts_of_programs_are_in_them(page):
    for _, program, text in parts(page):
        if program:
            whole = [_bare(line) for line in (ROOT / program).read_text(encoding="utf-8").splitlines()]
            for line in filter(None, map(_bare, text.splitlines())):
                assert line in whole, f"{program} has no line {line!r}"


def _bare(line: str) -> str:
    return line.partition("  #")[0].strip()
