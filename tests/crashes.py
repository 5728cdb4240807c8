"""Ends a process at one place among all that it does to a disk: before, within or after a write, or around a call.

A place is given by its number among all, or by its name and its number among those of that name; ``Disk(None)`` only
lists them. A kill at any moment falls between two of them.
"""

from __future__ import annotations

import io
import os
import signal
import stat
from collections.abc import Callable
from typing import Any

import forked


class Disk:
    """Passes writes, ``fsync`` and ``replace`` on, and kills the process when it comes to this place."""

    def __init__(self, fatal: int | tuple[str, int] | None) -> None:
        self.fatal = fatal
        self.places: list[str] = []

    def reach(self, place: str) -> None:
        if self.fatal in (len(self.places), (place, self.places.count(place))):
            os.kill(os.getpid(), signal.SIGKILL)
        self.places.append(place)

    def install(self, setattr: Callable[..., Any] = setattr) -> Disk:
        """Stand between this process and its files; a test that stays alive gives ``monkeypatch.setattr``."""
        fsync, replace, open_file = os.fsync, os.replace, io.open

        def synced(handle: int) -> None:
            kind = "directory fsync" if stat.S_ISDIR(os.fstat(handle).st_mode) else "fsync"
            self._around(kind, fsync, handle)

        def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            found = open_file(file, mode, *rest, **options)
            return File(found, self) if set(mode) & set("wxa") and not isinstance(file, int) else found

        setattr(os, "fsync", synced)
        setattr(os, "replace", lambda old, new: self._around("replace", replace, old, new))
        setattr(io, "open", opened)
        return self

    def _around(self, name: str, call: Callable[..., Any], *given: Any) -> None:
        self.reach(f"before {name}")
        call(*given)
        self.reach(f"after {name}")


class File:
    """A file that is written in two halves, each handed to the system at once."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, content: Any) -> int:
        middle = len(content) // 2
        for place, part in (("before write", content[:middle]), ("within write", content[middle:])):
            self._disk.reach(place)
            self._file.write(part)
            self._file.flush()
        self._disk.reach("after write")
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def killed(target: Callable[..., Any], *given: Any) -> bool:
    """Call ``target`` in a process; tell whether SIGKILL ended it. Anything else but success is an error."""
    forked.ensure_server()
    process = forked.SERVER.Process(target=target, args=given)
    process.start()
    process.join(300)  # the first one waits for what the server imports
    code = process.exitcode
    process.kill()
    assert code in (0, -signal.SIGKILL), f"the process ended with {code}"
    return code != 0
