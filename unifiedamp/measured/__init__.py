"""A session's part of a measured run: ``unifiedamp compare -- python train.py``, and ``tune``, ``record``, ``explain``.

The command names a folder in an environment variable. A session that finds it takes the settings there, notes its
steps in a file beside them, and ends the program after the number of steps asked for. Without the variable nothing here
is imported.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..backend import StepFollower
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


def making(part: str) -> AbstractContextManager[None]:
    """Return a context in which a retired interface (``unifiedamp.compat``) makes one of its sessions.

    Args:
        part: "casts" for the session that computes, "scaler" for one that only scales losses.
    """
    sessions = measured_run()
    return nullcontext() if sessions is None else sessions.run.making(part)


def follower() -> StepFollower | None:
    """Return what follows the steps of a retired interface; None where nothing is measured, or no session made."""
    sessions = measured_run()
    return None if sessions is None else sessions.shared


def policy_in_force(own: str) -> str:
    """Return the policy that a retired interface is to compute under: the command's, or else the script's own.

    Args:
        own: what the script says; empty where it says nothing now.
    """
    sessions = measured_run()
    return own if sessions is None else sessions.policy_in_force(own)
