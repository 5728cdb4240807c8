"""Python processes whose imports are done: forked by multiprocessing's server, which has imported ``preloaded``.

``Popen`` takes ``[sys.executable, "-c" or "-m" or file, …]`` and has the part of ``subprocess.Popen`` that tests use.
Each process is a real one, with its own pipes, environment, folder and session, and dies by signals as any other; only
the seconds that importing frameworks takes are not spent anew.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing as mp
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import types
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import become

PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired
SERVER = mp.get_context("forkserver")
TESTS = str(Path(__file__).parent)
_living: weakref.WeakSet[Popen] = weakref.WeakSet()


def ensure_server() -> None:
    """Start the server, where it does not run: it finds modules where this process does."""
    SERVER.set_forkserver_preload(["preloaded"])
    path = os.pathsep.join([TESTS, *filter(None, sys.path)])
    before = dict(os.environ)
    os.environ.update({"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"})
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


class Popen:
    """A process of the server. ``stdin``, ``stdout`` and ``stderr`` take ``PIPE``, ``DEVNULL`` or a file."""

    def __init__(
        self, command: list[Any], stdin: Any = None, stdout: Any = None, stderr: Any = None, *, cwd: Any = None,
        env: dict[str, str] | None = None, text: bool = False, start_new_session: bool = False,
    ) -> None:  # fmt: skip
        ensure_server()
        self.args = [os.fspath(each) for each in command]
        assert self.args[0] == sys.executable, self.args
        streams = [_Stream(given, number, text) for number, given in enumerate((stdin, stdout, stderr))]
        self.stdin, self.stdout, self.stderr = (stream.ours for stream in streams)
        wanted = become.Wanted(
            self.args, os.fspath(cwd or os.getcwd()), dict(os.environ if env is None else env), start_new_session
        )
        self._process = SERVER.Process(target=become.become, args=(wanted, *(stream.theirs for stream in streams)))
        self._process.start()
        for stream in streams:
            stream.theirs.close()
        self.pid = self._process.pid
        _living.add(self)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the server may have waited for it meanwhile
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[Any, Any]:
        """Return what the process writes until it ends."""
        found: dict[int, Any] = {}
        files = [file for file in (self.stdout, self.stderr) if file]
        readers = [threading.Thread(target=_read, args=(file, found), daemon=True) for file in files]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
        if any(reader.is_alive() for reader in readers):
            raise TimeoutExpired(self.args, timeout)
        self.wait(timeout)
        return found.get(id(self.stdout)), found.get(id(self.stderr))

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file:
                file.close()
        self._process.join(60)


class _Stream:
    """Both ends of a stream of the process; ``theirs`` is a connection, since those can be sent."""

    def __init__(self, given: Any, number: int, text: bool) -> None:
        self.ours: IO[Any] | None = None
        if given == DEVNULL:
            file = os.open(os.devnull, os.O_RDWR)
        elif given != PIPE:
            file = os.dup(number if given is None else given if isinstance(given, int) else given.fileno())
        elif number:
            ours, file = os.pipe()
            self.ours = os.fdopen(ours, "r" if text else "rb")
        else:
            file, ours = os.pipe()
            self.ours = os.fdopen(ours, "w" if text else "wb")
        self.theirs = Connection(file)


def _read(file: IO[Any], found: dict[int, Any]) -> None:
    found[id(file)] = file.read()


@atexit.register
def _kill_all() -> None:
    """Or multiprocessing would wait for what a failed test left."""
    for process in list(_living):
        process.kill()


def start(command: list[Any], popen: Any = Popen, **options: Any) -> Any:
    """Start a process whose output is read as text."""
    return popen(command, stdout=PIPE, stderr=PIPE, text=True, **options)


def run(command: list[Any], popen: Any = Popen, timeout: float = 240, **options: Any) -> Any:
    """As ``subprocess.run``, with the output captured as text."""
    with start(command, popen, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def like_subprocess() -> types.SimpleNamespace:
    """What ``unifiedamp.workloads`` uses of ``subprocess``."""
    return types.SimpleNamespace(Popen=Popen, PIPE=PIPE, DEVNULL=DEVNULL, TimeoutExpired=TimeoutExpired)
