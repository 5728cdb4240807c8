"""Files on disk: reading what is to be migrated, and writing it whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import ConfigError
from .engine import migrate
from .notebooks import migrate_notebook
from .report import Migration

NOT_OURS = frozenset({"node_modules", "site-packages", "dist-packages", "__pycache__", "venv", "env"})
"""Folders that hold other people's code; those whose names begin with a dot, and environments, are skipped too."""


def in_folder(folder: Path) -> list[Path]:
    """Return the Python files and notebooks of a folder, in order; not those of environments and installed packages."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_own(Path(root) / name)]
        found += [Path(root) / name for name in names if name.endswith((".py", ".ipynb"))]
    return sorted(path for path in found if path.is_file())


def _is_own(folder: Path) -> bool:
    known = folder.name in NOT_OURS and (folder.name not in ("venv", "env") or not (folder / "__init__.py").exists())
    return not (folder.name.startswith(".") or known or (folder / "pyvenv.cfg").exists())


def readable(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the Python files that can be read."""
    for path in paths:
        if path.suffix == ".py":
            try:
                yield str(path), path.read_bytes()
            except OSError:
                continue  # migrate_file says why


def migrate_file(path: Path, to: str = "amp", halves: bool = True) -> Migration:
    """Return what would become of a file, or of a notebook.

    Args:
        path: the file.
        to: "amp" or "compat"; see ``migrate``.
        halves: functions that other files hand a scaler are migrated too; see ``migrate``.

    Raises:
        ConfigError: it cannot be read, or is not Python.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if path.suffix == ".ipynb":
        return migrate_notebook(str(path), content, to)
    return migrate(str(path), content, to, halves)


def write(migration: Migration) -> None:
    """Put a migrated text in its file's place; a crash leaves either the old text or the new one.

    Raises:
        ConfigError: the file has changed meanwhile, or cannot be written.
    """
    path = Path(migration.path).resolve()  # a link stays a link
    try:
        if path.read_bytes() != migration.before:
            raise ConfigError(f"{migration.path}: it has changed since it was read; run migrate again")
        _replace(path, migration.after)
    except OSError as error:
        raise ConfigError(f"{migration.path}: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o7777)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
