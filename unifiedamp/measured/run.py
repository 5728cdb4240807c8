"""The measured run that this process is part of."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ..errors import AmpError, StepOrderError
from .claim import claim, leads
from .log import Log
from .overrides import WHOLE
from .request import RunRequest, read_request

MADE = "sessions"
"""The file that grows by one byte for each session made by a leading process."""


class Training(Protocol):
    """The part of a session's steps that the run ends with."""

    def flush(self) -> None:
        """Note what was not noted yet."""


class MeasuredRun:
    """What the sessions of this process share.

    Args:
        folder: of the run.
        request: what the command asks for.

    Attributes:
        log: where the counted process notes what happens; None in others.
        finished: whether the last step asked for was made.
        part: what the next session is for, see ``overrides``.
    """

    def __init__(self, folder: Path, request: RunRequest) -> None:
        self.folder, self.request = folder, request
        self.log: Log | None = None
        self.finished = False
        self.part = WHOLE
        self._process = os.getpid()
        self._training: Training | None = None
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._forked)

    def made(self) -> None:
        """Note that a session was made."""
        if leads():
            with suppress(OSError), (self.folder / MADE).open("ab") as file:
                file.write(b".")

    def begin(self, training: Training, describe: Callable[[], dict[str, Any]]) -> None:
        """Note that a session trains; the first one is counted.

        Raises:
            StepOrderError: it is the second.
        """
        if self._training is not None and self._training is not training:
            self._two_sessions()
        self._training = training
        if claim(self.folder):
            self.log = Log(self.folder)
            self.log.write("session", **describe())

    def _two_sessions(self) -> NoReturn:
        why = (
            "the script trains under two sessions (ua.Amp), and a measured run takes one: prepare all models and "
            "optimizers in one session, or ask for fewer steps than the first one makes (--steps)"
        )
        self.end("two sessions", why)
        raise StepOrderError(why)

    def end(self, reason: str, why: str = "") -> None:
        """Note how the run ended; the first reason counts."""
        if self.log is not None and not self.finished:
            self.log.write("end", reason=reason, why=why)
        self.finished = True

    def fail(self, error: AmpError) -> NoReturn:
        """Note an error of the run's, and raise it in the script."""
        if self.log is None and claim(self.folder):
            self.log = Log(self.folder)
        self.end("error", str(error))
        raise error

    def leave(self) -> NoReturn:
        """End the program; where it goes on all the same, it is ended at its next step."""
        if self.finished:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(0)
        self.end("steps")
        raise SystemExit(0)

    def _at_exit(self) -> None:
        if os.getpid() == self._process and self.log is not None and not self.finished:
            if self._training is not None:
                self._training.flush()
            self.end("early")

    def _forked(self) -> None:
        self.log = None

    @contextmanager
    def making(self, part: str) -> Iterator[None]:
        """Make a session inside that is one half of a retired interface's."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before


@functools.cache
def join(folder: str) -> MeasuredRun:
    """Return the run in a folder; one object for each process.

    Raises:
        ConfigError: the folder holds none.
    """
    return MeasuredRun(Path(folder), read_request(Path(folder)))


def nothing_prepared(task: str) -> AmpError:
    """Return why a session that prepared nothing cannot "record" or "forecast"."""
    return AmpError(
        f"nothing to {task}: this session trains models that were not given to amp.prepare (a retired interface of "
        "unifiedamp.compat does so); see docs/migrate for the form with amp.prepare"
    )
