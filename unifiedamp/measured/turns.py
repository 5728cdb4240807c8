"""Waiting for a turn: runs that are compared do not compute at the same time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .request import RunRequest, turn_file

POLL_SECONDS = 0.01
CHECKED = 100
"""Polls between two looks at whether the command still runs."""


def wait_for_turn(folder: Path, request: RunRequest, number: int) -> None:
    """Return once the command permits a turn; end this process where the command is gone."""
    if not request.waits:
        return
    permission, polls = turn_file(folder, number), 0
    while not permission.exists():
        time.sleep(POLL_SECONDS)
        polls += 1
        if polls % CHECKED == 0 and not _alive(request.command):
            os._exit(1)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
