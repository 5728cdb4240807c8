"""Files and folders that a command writes: checked before any work, and written whole or not at all.

What is written lies beside its target first, under a name that holds this machine and process. The remains of a process
that was killed outright are known by it, and removed at the next start.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from ..errors import ConfigError

SPACE = 4096
"""Bytes that a folder must have room for."""


def check_folder(path: Path, what: str) -> Path:
    """Return a folder's path once it is clear that it can be made and written to; nothing is left there.

    Args:
        path: the folder.
        what: what it is to the user, such as the option's name; begins the error's message.

    Raises:
        ConfigError: it is a file, or cannot be made or written to.
    """
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{what} {path} is a file; name a folder")
        _try_out(next(each for each in (path, *path.absolute().parents) if each.exists()))
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be written to: {reason(error)}") from error
    return path


def check_file(path: Path, what: str, parents: bool = False) -> Path:
    """Return a file's path once it is clear that it can be written; nothing is left there.

    Args:
        path: the file, there or not.
        what: as for :func:`check_folder`.
        parents: its folder may be missing; it will be made.

    Raises:
        ConfigError: it is a folder, its folder is not there, or either cannot be written to.
    """
    if path.is_dir():
        raise ConfigError(f"{what} {path} is a folder; name a file")
    try:
        if path.is_file():
            with path.open("ab"):
                return path
        if path.exists():  # a device or a pipe
            return path
        if parents and not path.parent.exists():
            return path
        if not path.parent.is_dir():
            raise ConfigError(f"{what} {path}: there is no folder {path.parent}")
        _try_out(path.parent)
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be written: {reason(error)}") from error
    return path


def _try_out(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0" * SPACE)


def reason(error: OSError) -> str:
    """Return what the system says went wrong."""
    return error.strerror or str(error)


def write_whole(target: Path, content: str | bytes) -> None:
    """Replace a file: a reader, also after a kill, finds the old content or the new one.

    Raises:
        ConfigError: it cannot be written; the old file is kept.
    """
    try:
        replace_whole(target, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {reason(error)}") from error


def replace_whole(target: Path, content: bytes) -> None:
    """Do the same, durably, and leave errors as the system raises them."""
    temporary = target.with_name(f".{target.name}.{owner()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


# -- what processes leave that were killed outright --------------------------------------------------------------------


def owner() -> str:
    """Return this machine and process as a part of a file's name."""
    return f"{_host()}-{os.getpid()}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary folder, a context that removes it."""
    return tempfile.TemporaryDirectory(prefix=f"unifiedamp-{owner()}-")


def remove_folders() -> None:
    """Remove the temporary folders that dead processes left."""
    for left in Path(tempfile.gettempdir()).glob("unifiedamp-*"):
        with contextlib.suppress(OSError):
            if _is_dead(left.name) and left.lstat().st_uid == os.getuid():
                shutil.rmtree(left)


def remove_neighbours(target: Path) -> None:
    """Remove what dead processes left beside a file that they were writing."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if _is_dead(left.name):
                left.unlink()


def _is_dead(name: str) -> bool:
    """Return whether a name holds a process of this machine that is gone; of other machines, nothing is known."""
    found = re.search(rf"[.-]{_host()}-(\d+)[.-]", name)
    if found is None or os.name != "posix":  # elsewhere, signal 0 ends a process
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
