"""The documentation site: its pages are listed, its messages exist, its command lines are understood."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from unifiedamp.cli import app

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_page_is_in_the_navigation():
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if not re.search(rf"(- |: ){re.escape(page)}$", SITE, re.MULTILINE)] == []


@functools.cache
def texts() -> str:
    """Return every string of the sources, formatted values as a gap, one per line."""
    found = []
    for folder in ("unifiedamp", "backends"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found += [_text(node) for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    return "\n".join(filter(None, found))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or "\0" for value in node.values)
    return ""


@pytest.mark.parametrize("message", MESSAGES)
def test_troubleshooting_quotes_messages_that_exist(message):
    assert message in texts()


def command_lines() -> list[str]:
    found = []
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for block in re.findall(r"^```(?:bash|console)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            block = block.replace("\\\n", " ")
            start = r"\$ " if "\n$ " in f"\n{block}" else ""  # of a listing with output, the lines that were typed
            found += re.findall(rf"^{start}(unifiedamp [^#\n]+?) *(?:#.*)?$", block, re.MULTILINE)
    return list(dict.fromkeys(line for line in found if "COMMAND" not in line))


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_are_understood(line):
    """Parsed by the command's own options, and not run; what follows ``--`` is another program's."""
    words = shlex.split(line)[1:]
    if words[0].startswith("unifiedamp") or words[0] == "--version":
        return
    group = typer.main.get_command(app)
    context = group.make_context("unifiedamp", [words[0]], resilient_parsing=True)
    _, command, _ = group.resolve_command(context, words)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    used = [word.partition("=")[0] for word in words[1:] if word.startswith("-")]
    assert [word for word in used[: used.index("--") if "--" in used else None] if word not in known] == MISTAKES.get(
        line, []
    )


MISTAKES = {"unifiedamp doctor --mesure": ["--mesure"]}
"""Lines that a page shows for the error they get."""
