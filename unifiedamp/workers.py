"""Work done in a process of its own, so that a crash or a lack of memory costs that work alone.

The parent asks, the worker answers; both write one JSON value per line. ``Worker("package.module:make")`` starts a
process that imports ``package.module``, calls ``make(tell)`` for a function ``handle(request)``, and hands it each
request. ``tell(value)`` reports progress meanwhile. What the worker's libraries print goes to its standard error, which
is shown only when it dies.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .errors import AmpError

Handle = Callable[[dict[str, Any]], Any]
Tell = Callable[[Any], None]


class WorkerError(AmpError):
    """A worker failed.

    Attributes:
        kind: "error" (an exception), "refused" (an ``AmpError``), "memory" (an exception for lack of memory) or
            "crash" (the process is gone).
        error: the name of the exception's class, or of the signal that ended the process; may be empty.
    """

    def __init__(self, message: str, kind: str, error: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.error = error


class OutOfMemory(Exception):
    """Raised by a handler that ran out of memory, so that the parent can tell; the process is still good."""


class Worker:
    """The parent's end. A context manager: leaving it ends the process.

    Args:
        target: "module:function" that makes the handler.
        env: environment variables beside the parent's.
    """

    def __init__(self, target: str, env: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unifiedamp.workers", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its workers itself
        )

    def ask(self, request: Mapping[str, Any], told: Tell | None = None) -> Any:
        """Return the answer to a request.

        Args:
            request: plain JSON values.
            told: called with what the handler tells meanwhile.

        Raises:
            WorkerError: it failed, or the process is gone.
        """
        try:
            assert self._process.stdin
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._gone() from None
        while True:
            message = self._read()
            if "told" not in message:
                break
            if told is not None:
                told(message["told"])
        if "failed" in message:
            raise WorkerError(message["failed"], message["kind"], message["error"])
        return message["answer"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._gone()
        found: dict[str, Any] = json.loads(line)
        return found

    def _gone(self) -> WorkerError:
        code = self._process.wait()
        said = self.last_words()
        return WorkerError(f"its process {_ending(code)}{': ' + said if said else ''}", "crash", _signal(code))

    def last_words(self) -> str:
        """Return the last line that the process wrote to its standard error."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End the process; closing it again is harmless."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            try:
                stream.close()  # type: ignore[union-attr]
            except OSError:  # what was never read by a process that is gone
                continue

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return ""


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = _signal(code) or f"signal {-code}"
    return f"was killed by {name}{' (which the system sends when memory runs out)' if name == 'SIGKILL' else ''}"


def serve(target: str) -> None:
    """Be the worker: answer requests until the parent is gone."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # The pipe to the parent is kept aside; whatever prints to file descriptor 1 writes to the standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    handle: Handle | None = None
    for line in sys.stdin:
        try:
            handle = handle or _make(target, lambda value: send({"told": value}))
            answer = handle(json.loads(line))
        except Exception as error:
            send(_failure(error))
        else:
            send({"answer": answer})


def _end_with(parent: int) -> None:
    """End this process, whatever it does, once its parent is gone: killed outright, a parent closes nothing."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _make(target: str, tell: Tell) -> Handle:
    module, _, name = target.partition(":")
    made: Handle = getattr(importlib.import_module(module), name)(tell)
    return made


def _failure(error: Exception) -> dict[str, Any]:
    said = " ".join(str(error).split()) or "no message"
    name = type(error).__name__
    if isinstance(error, AmpError):
        return {"failed": said, "kind": "refused", "error": name}
    if isinstance(error, OutOfMemory):
        return {"failed": said, "kind": "memory", "error": name}
    return {"failed": f"{name}: {said}"[:600], "kind": "error", "error": name}


if __name__ == "__main__":
    from unifiedamp import workers  # the module of that name, whose classes handlers raise

    workers.serve(sys.argv[1])
