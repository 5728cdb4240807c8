"""What a process says when another one, with which it trains, has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...backend import Ranks
from ...errors import AmpError, ProcessLostError


@contextmanager
def report_lost_processes(ranks: Ranks) -> Iterator[None]:
    """Raise ``ProcessLostError`` in place of what a framework raises where another process has ended.

    Args:
        ranks: the processes that train together.
    """
    try:
        yield
    except AmpError:
        raise
    except Exception as error:
        lost = ranks.lost(error)
        if lost is None:
            raise
        raise ProcessLostError(
            f"train: {lost} has ended, or made another step than this one: it was killed, failed, or its batches are "
            "fewer than those of others (what it printed, or its launcher, says more); start all processes again, with "
            "--resume to go on from the last checkpoint"
        ) from error
