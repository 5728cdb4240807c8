"""A session's part of a measured run: ``unifiedamp compare -- python train.py``, and ``tune``, ``record``, ``explain``.

The command names a folder in an environment variable. A session that finds it takes the settings there, notes its
steps in a file beside them, and ends the program after the number of steps asked for. Without the variable nothing here
is imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sessions import MeasuredSessions

VARIABLE = "UNIFIEDAMP_MEASURED_RUN"
"""Holds the folder of the run."""


def measured_run() -> MeasuredSessions | None:
    """Return how sessions take part in the measured run of this process; None where there is none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    from .sessions import sessions_of

    return sessions_of(folder)
