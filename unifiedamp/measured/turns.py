"""Waiting for a turn: runs that are compared do not compute at the same time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .request import RunRequest, turn_file

POLL_SECONDS = 0.01
CHECKED = 100
"""Polls between two looks at whether the command still runs."""


def wait_for_turn(folder: Path, request: RunRequest, number: int) -> tuple[int, bool]:
    """Wait until the command permits a turn; end this process where the command is gone.

    Returns:
        The step that ends the turn, and whether the run ends with it.
    """
    permission, polls = turn_file(folder, number), 0
    while not permission.exists():
        time.sleep(POLL_SECONDS)
        polls += 1
        if polls % CHECKED == 0 and not _alive(request.command):
            os._exit(1)
    until, last = permission.read_text(encoding="utf-8").split()
    return int(until), last == "1"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
