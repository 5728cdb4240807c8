"""Files on disk: reading what is to be migrated, and writing it whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import ConfigError
from .engine import migrate
from .report import Migration


def migrate_file(path: Path) -> Migration:
    """Return what would become of a file.

    Raises:
        ConfigError: it cannot be read, or is no Python.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return migrate(str(path), content)


def write(migration: Migration) -> None:
    """Put a migrated text in its file's place; whoever is killed leaves the old text or the new one.

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
