"""The processes that a script starts, all of them: found and ended together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil

from ...measured import VARIABLE


def end_all(leader: int, folder: str) -> None:
    """End a script and everything that it started, also what has left its group.

    Args:
        leader: the process that was started; it leads its own group.
        folder: of its run, which its processes have in their environment.
    """
    for process in list(_family(leader, folder)):
        with suppress(psutil.Error):
            process.kill()
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def _family(leader: int, folder: str) -> Iterator[psutil.Process]:
    with suppress(psutil.Error):
        yield from psutil.Process(leader).children(recursive=True)
    # What was started apart (torchrun's workers, a daemon) has the run's folder in its environment.
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(VARIABLE) == folder:
                yield process
