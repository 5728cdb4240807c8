"""Work done in a separate process, so that a crash or a lack of memory affects that work only.

The parent asks, the worker answers (``worker_process.py``); both write one JSON value per line.
``Worker("package.module:make")`` starts a process that imports ``package.module``, calls ``make(report_progress)`` for
a function ``handle(request)``, and passes it each request. ``report_progress(value)`` may be called meanwhile. What the
worker's libraries print goes to its standard error, of which the end is shown when the process dies.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ..errors import AmpError

ENDING_SECONDS = 5.0
"""How long a process whose pipe is closed may take to end by itself, so that its exit code is known."""
LONGEST = 2**28
"""Bytes of the longest line that is read."""

Handle = Callable[[dict[str, Any]], Any]
ReportProgress = Callable[[Any], None]


class WorkerError(AmpError):
    """A worker failed.

    Attributes:
        kind: "error" (an exception), "refused" (an ``AmpError``), "memory" (an exception for lack of memory), "crash"
            (the process is gone), "timeout" (it said nothing for too long) or "garbage" (what it said is no answer).
            After the last three the process has ended.
        error: the name of the exception's class, or of the signal that ended the process; may be empty.
    """

    def __init__(self, message: str, kind: str, error: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.error = error


class OutOfMemory(Exception):
    """Raised by a handler that ran out of memory, so that the parent knows; the process goes on."""


class Worker:
    """The parent's end. A context manager: leaving it ends the process.

    Args:
        target: "module:function" that makes the handler.
        env: environment variables beside the parent's.
    """

    def __init__(self, target: str, env: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unifiedamp.workloads.worker_process", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers itself
        )
        self._lines = _Lines(self._process)

    def ask(
        self, request: Mapping[str, Any], on_progress: ReportProgress | None = None, timeout: float | None = None
    ) -> Any:
        """Return the answer to a request.

        Args:
            request: plain JSON values.
            on_progress: called with what the handler reports meanwhile.
            timeout: seconds without new progress after which the process is ended; None waits forever.

        Raises:
            WorkerError: it failed, or the process is gone.
        """
        self._send(request)
        last: Any = None
        deadline = _deadline(timeout)
        while True:
            message = self._read(deadline, timeout)
            if "progress" not in message:
                break
            if message["progress"] != last:  # the same report again is no progress
                last, deadline = message["progress"], _deadline(timeout)
            if on_progress is not None:
                on_progress(message["progress"])
        if "answer" in message:
            return message["answer"]
        try:
            raise WorkerError(str(message["failed"]), str(message["kind"]), str(message["error"]))
        except KeyError:
            raise self.garbage(message) from None

    def _send(self, request: Mapping[str, Any]) -> None:
        try:
            assert self._process.stdin
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the process is gone, or was ended
            raise self._gone() from None

    def _read(self, deadline: float, timeout: float | None) -> dict[str, Any]:
        try:
            line = self._lines.read(deadline)
        except TimeoutError:
            self._end()
            said = f"it said nothing new for {timeout:g} seconds and was stopped{self._said()}"
            raise WorkerError(said, "timeout") from None
        if line is None:
            raise self._gone()
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.garbage(line.decode(errors="replace"))
        return found

    def garbage(self, answer: object) -> WorkerError:
        """End the process, and return the error that says what it answered."""
        self._end()
        return WorkerError(f"its answer makes no sense ({str(answer)[:100]!r}){self._said()}", "garbage")

    def _gone(self) -> WorkerError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        self._end()
        code = self._process.returncode
        return WorkerError(f"its process {describe_ending(code)}{self._said()}", "crash", signal_name(code))

    def _said(self) -> str:
        said = self.stderr_tail()
        return f": {said}" if said else ""

    def stderr_tail(self) -> str:
        """Return the last line that the process wrote to its standard error."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End the process. Idempotent."""
        self._end()
        assert self._process.stdout
        self._process.stdout.close()
        self._errors.close()

    def _end(self) -> None:
        """End the process and what it has started."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads its own group: see start_new_session
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            assert self._process.stdin
            self._process.stdin.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Lines:
    """The lines that a process writes, each awaited for a limited time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        self._process, self._file, self._read = process, process.stdout.fileno(), bytearray()
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    def read(self, deadline: float) -> bytes | None:
        """Return the next line, or None where the process has ended.

        Args:
            deadline: a time of ``time.monotonic``.

        Raises:
            TimeoutError: nothing more has come by then.
        """
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0 and len(self._read) < LONGEST:
            searched = len(self._read)
            chunk = os.read(self._file, 1 << 16) if self._comes(deadline) else b""
            if not chunk:
                return None
            self._read += chunk
        line = bytes(self._read[: end + 1 or None])
        del self._read[: len(line)]
        return line

    def _comes(self, deadline: float) -> bool:
        """Wait for more. What the process has started may keep the pipe open: its own end is what counts."""
        while (left := deadline - time.monotonic()) > 0:
            if self._poll.poll(1000 * min(left, 1.0)):
                return True
            if self._process.poll() is not None:
                return bool(self._poll.poll(0))
        raise TimeoutError


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def signal_name(code: int) -> str:
    """Return the signal that ended a process; empty where none did."""
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return ""


def describe_ending(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal_name(code) or f"signal {-code}"
    return f"was killed by {name}{' (which the system sends when memory runs out)' if name == 'SIGKILL' else ''}"
