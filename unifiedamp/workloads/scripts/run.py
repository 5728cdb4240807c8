"""One run of a script, in a separate process group, followed through what its session writes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...config import plugins
from ...errors import ConfigError
from ...measured import VARIABLE
from ...measured.request import LOG, RunRequest, permit
from ...measured.run import MADE
from ...output.files import reason, temporary_folder
from ..workers import WorkerError, describe_ending, signal_name
from .last_words import last_words
from .processes import end_all

POLL_SECONDS = 0.01
GRACE_SECONDS = 5.0
"""How long a script may take to end by itself after its last step."""
MEMORY_WORDS = ("MemoryError", "out of memory", "OutOfMemory", "RESOURCE_EXHAUSTED", "bad_alloc", "alloc_cpu")


class ScriptRun:
    """A script that runs under a request. A context manager: leaving it ends the script and all that it started.

    Args:
        command: the program and its arguments.
        request: what its session is to do.
        timeout: seconds without a sign of life after which it counts as hung.
        output: where its standard output and error go, without the endings ".out.txt" and ".err.txt"; None for the
            run's own folder.

    Raises:
        ConfigError: the program cannot be started.
    """

    def __init__(self, command: Sequence[str], request: RunRequest, timeout: float, output: Path | None = None) -> None:
        self._temporary = temporary_folder()
        self.folder = Path(self._temporary.name)
        request.write(self.folder)
        self._timeout, self._read, self._offset = timeout, list[dict[str, Any]](), 0
        base = output or self.folder / "script"
        self.stderr = base.with_name(f"{base.name}.err.txt")
        try:
            with base.with_name(f"{base.name}.out.txt").open("wb") as out, self.stderr.open("wb") as err:
                self._process = subprocess.Popen(
                    list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self._environment(),
                    start_new_session=True,  # Ctrl-C is for the command, which ends its scripts itself
                )  # fmt: skip
        except OSError as error:
            self._temporary.cleanup()
            raise ConfigError(f"{command[0]} cannot be run: {reason(error)}") from error

    def _environment(self) -> dict[str, str]:
        sharing: dict[str, str] = {}
        for name, info in plugins.available_backends().items():
            if info.installed:
                sharing |= plugins.load_plugin(name).sharing
        return {**sharing, **os.environ, VARIABLE: str(self.folder), "PYTHONUNBUFFERED": "1"}

    def permit(self, turn: int, until: int, last: bool) -> None:
        """Permit a turn that ends with the step ``until``; with the last one, the run ends."""
        permit(self.folder, turn, until, last)

    def expect(self, *kinds: str) -> Mapping[str, Any]:
        """Return the next note of one of these kinds; without any, wait for the end.

        Raises:
            WorkerError: the script ended first, or gave no sign of life for too long.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            ended = self._process.poll() is not None
            if self._notes():
                deadline = time.monotonic() + self._timeout
            while self._read:
                note = self._read.pop(0)
                if note["kind"] in kinds:
                    return note
                if note["kind"] == "end":
                    raise self.failure(note)
            if ended:
                raise self._gone()
            if time.monotonic() > deadline:
                raise self._hung()
            time.sleep(POLL_SECONDS)

    def _notes(self) -> bool:
        """Read what is new, whole lines; return whether there was any."""
        try:
            with (self.folder / LOG).open("rb") as file:
                file.seek(self._offset)
                new, found, _ = file.read().rpartition(b"\n")
        except OSError:
            return False
        self._offset += len(new) + len(found)
        for line in new.splitlines():
            with suppress(ValueError):
                self._read.append(json.loads(line))
        return bool(found)

    # -- ends ----------------------------------------------------------------------------------------------------

    def failure(self, note: Mapping[str, Any]) -> WorkerError:
        """Return the error of a run whose last note this is."""
        if note["reason"] != "early":
            return WorkerError(note["why"] or f"it ended: {note['reason']}", "error")
        self._wait()
        if self._process.returncode:
            return self._gone()
        return WorkerError("it ended before the steps asked for", "early")

    def _gone(self) -> WorkerError:
        self._wait()
        code, said = self._process.returncode or 0, last_words(self.stderr)
        memory = signal_name(code) == "SIGKILL" or any(word in said for word in MEMORY_WORDS)
        ending = f"the script {describe_ending(code)}"
        if not (self.folder / LOG).exists():
            ending += f" before its first step ({self._sessions()})"
        return WorkerError(f"{ending}{f': {said}' if said else ''}", "memory" if memory else "crash")

    def _sessions(self) -> str:
        try:
            made = (self.folder / MADE).stat().st_size
        except OSError:
            return "it made no session: ua.Amp or one of unifiedamp.compat"
        return f"it made {'a session' if made == 1 else f'{made} sessions'}, and never scaled a loss or called step"

    def _hung(self) -> WorkerError:
        said = last_words(self.stderr)
        state = "" if (self.folder / LOG).exists() else f", before its first step ({self._sessions()})"
        self.close()
        words = f"it gave no sign of life for {self._timeout:g} seconds and was ended{state}"
        return WorkerError(f"{words}{f': {said}' if said else ''}", "timeout")

    def _wait(self, seconds: float = GRACE_SECONDS) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def wait(self) -> None:
        """Let the script end by itself, for a while."""
        self._wait()

    def finish(self) -> None:
        """Do the same, and end what is left of it."""
        self._wait()
        self.close()

    def close(self) -> None:
        """End the script and all that it started. Idempotent."""
        end_all(self._process.pid, str(self.folder))
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._temporary.cleanup()

    def __enter__(self) -> ScriptRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
