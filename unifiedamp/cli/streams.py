"""Where a command prints: with ``--json`` its value alone on standard output, with ``--quiet`` no progress."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TextIO

STDOUT, STDERR = 1, 2
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_results: ContextVar[TextIO | None] = ContextVar("results", default=None)


def is_quiet() -> bool:
    """Return whether the command was asked for results and errors only."""
    return _quiet.get()


def results() -> TextIO:
    """Return the stream of the command's value: standard output, whatever ``sys.stdout`` is for now."""
    return _results.get() or sys.stdout


@contextmanager
def quietly(wanted: bool) -> Iterator[None]:
    """Hide progress where ``wanted``."""
    token = _quiet.set(wanted)
    try:
        yield
    finally:
        _quiet.reset(token)


@contextmanager
def only_results(wanted: bool) -> Iterator[None]:
    """Where ``wanted``, have everything but :func:`results` go to standard error.

    That includes what frameworks, user files and child processes print.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    with _apart(sys.stdout) as stream:
        token = _results.set(stream)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _results.reset(token)


@contextmanager
def _apart(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream to where ``stream`` leads; meanwhile its descriptor leads to standard error."""
    if _descriptor(stream) != STDOUT:  # a test's or a notebook's stream
        yield stream
        return
    kept = os.dup(STDOUT)
    try:
        _lead_to_errors()
        with open(kept, "w", encoding=stream.encoding, errors=stream.errors, closefd=False) as apart:
            yield apart
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)


def _lead_to_errors() -> None:
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:  # standard error is closed
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), STDOUT)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, io.UnsupportedOperation, AttributeError):
        return None
