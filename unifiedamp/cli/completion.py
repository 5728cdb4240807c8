"""Values that a shell completes, by the name of the parameter. Nothing of the user's is imported for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from . import names
from .settings_in_source import assignments_of

Found = list[tuple[str, str]]
"""Values, each with what it means."""
WORKLOADS, RECORDINGS = (".py", ".toml", ".json"), (".jsonl",)
MOST = 200
"""Files looked at below a folder."""


def one(known: Callable[[], names.Names]) -> Callable[[str], Found]:
    """Return what completes a single name."""

    def complete(incomplete: str) -> Found:
        return [(name, about) for name, about in known().items() if name.startswith(incomplete)]

    return complete


def several(known: Callable[[], names.Names]) -> Callable[[str], Found]:
    """Return what completes names with commas between them."""

    def complete(incomplete: str) -> Found:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        left = {name: about for name, about in known().items() if name not in given}
        return [(before + comma + name, about) for name, about in left.items() if name.startswith(last)]

    return complete


def files(*suffixes: str) -> Callable[[str], Found]:
    """Return what completes files of these kinds, those in folders below included.

    Where there is none, the shell completes file names as it does elsewhere.
    """

    def complete(incomplete: str) -> Found:
        folder = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)
        found = [str(path) for path in _below(folder) if path.suffix.lower() in suffixes]
        return [(path, "") for path in found if path.startswith(incomplete.removeprefix("./"))]

    return complete


def _below(folder: Path) -> Iterable[Path]:
    """Return the files of a folder, then those of the folders in it; hidden ones are left out."""
    try:
        here = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        deeper = [each for path in here if path.is_dir() for each in path.iterdir() if not each.name.startswith(".")]
    except OSError:
        return []
    return [path for path in [*here, *sorted(deeper)] if path.is_file()][:MOST]


def settings(context: typer.Context, incomplete: str) -> Found:
    """Complete ``--set`` by the workload that stands before it."""
    named = [context.params.get(name) for name in ("workload", "file", "config")]
    # The parser stops at an option without its value, and leaves the words before it.
    given = [str(each) for each in (*named, *context.args) if each]
    found = assignments_of(given[0]) if given else {}
    return [(text, about) for text, about in found.items() if text.startswith(incomplete)]


COMPLETED = {
    "backend": one(names.backends),
    "backends": several(names.backends),
    "policy": one(names.policies),
    "policies": several(names.policies),
    "formats": several(lambda: {name: f"mixed_{name}" for name in ("bfloat16", "float16", "float8")}),
    "compile": several(names.KINDS["compile-modes"][1]),
    "loss_scale": one(names.KINDS["loss-scales"][1]),
    "kinds": one(lambda: {kind: about for kind, (about, _) in names.KINDS.items()}),
    "fault": one(names.faults),
    "launcher": one(lambda: {"ray": "Ray Train"}),
    "workload": files(*WORKLOADS),
    "config": files(*WORKLOADS),
    "file": files(*WORKLOADS, *RECORDINGS),
    "assignments": settings,
}
"""Parameter → what completes it, on every command that has it."""
