"""The backends that a file is written for, as far as its imports say; found without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...config import plugins
from ...errors import AmpError


def likely_backends(path: Path) -> list[str]:
    """Return the installed backends whose framework a file imports at its top level.

    Args:
        path: a Python file; one that cannot be parsed imports nothing.
    """
    imported = _imported(path)
    infos = plugins.available_backends()
    return [
        name for name, info in infos.items() if info.installed and info.plugin and info.plugin.framework in imported
    ]


def load_frameworks(path: Path) -> None:
    """Import what a file imports through its backends, which know how: some frameworks need help on a new numpy."""
    for name in likely_backends(path):
        with suppress(AmpError):  # the file's own import says it better
            plugins.load_backend(name)


def _imported(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return set()
    found: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, those in ``if`` and ``try`` included."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)
