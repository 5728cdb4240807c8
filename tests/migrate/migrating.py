"""What the tests of ``unifiedamp migrate`` share: listings, and running code by its text."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from unifiedamp.migrate.engine import migrate

ROOT = Path(__file__).parents[2]
LISTINGS = ROOT / "tests" / "listings"


def migrated(text: str, path: str = "old.py") -> Any:
    """Return the migration of a text; a second one must find nothing to change."""
    done = migrate(path, text.encode())
    again = migrate(path, done.after)
    assert not again.changed, again.diff()
    return done


def listing(name: str) -> str:
    return (LISTINGS / f"{name}.py").read_text(encoding="utf-8")


def old_text(name: str) -> str:
    """A text of ours in an old API, where no write-up has one."""
    return (Path(__file__).parent / "old" / f"{name}.py").read_text(encoding="utf-8")


def replaced(text: str, *changes: tuple[str, str]) -> str:
    """Return ``text`` with each (old, new) replaced; each must be there once."""
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def run(text: str, steps: int, name: str = "listing") -> list[float]:
    """Run a listing's ``train``."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), space)
    return [float(loss) for loss in space["train"](steps)]


def identifiers(text: str) -> set[str]:
    """Every name in the code, comments and texts left out."""
    tree = ast.walk(ast.parse(text))
    fields = ("id", "attr", "arg", "name")
    return {getattr(node, field) for node in tree for field in fields if isinstance(getattr(node, field, None), str)}
