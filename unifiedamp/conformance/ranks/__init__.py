"""Ranks that train together: what a harness and the suite share.

A harness plays the suite's cases in ``Harness.run_ranks``, with :class:`RankProcesses` to start processes that it
watches, and :func:`play_all` to train them through a session.
"""

from .case import (
    LEARNING_RATE,
    SIZES,
    Answers,
    Array,
    RankCase,
    RankFailure,
    RankKind,
    RankStep,
    RankTrace,
    Rows,
    owned,
)
from .processes import RankProcesses, RanksFailedError
from .program import RankSide, Step, answers_of, play, play_all

__all__ = [
    "LEARNING_RATE",
    "SIZES",
    "Answers",
    "Array",
    "RankCase",
    "RankFailure",
    "RankKind",
    "RankProcesses",
    "RankSide",
    "RankStep",
    "RankTrace",
    "RanksFailedError",
    "Rows",
    "Step",
    "answers_of",
    "owned",
    "play",
    "play_all",
]
