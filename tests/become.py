"""The side of ``forked`` that runs in the new process: it becomes what a command line asks for."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading
import types
from dataclasses import dataclass
from multiprocessing.connection import Connection

STDOUT = "UNIFIEDAMP_TEST_STDOUT"
"""Holds the inode of a process's standard output: beside it stand the server's pipes."""


@dataclass(frozen=True)
class Wanted:
    """A command line that begins with the interpreter, and what a process is started with."""

    command: list[str]
    folder: str
    environment: dict[str, str]
    session: bool


def become(wanted: Wanted, *streams: Connection) -> None:
    """Be the process that was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (multiprocessing has closed it)
    if wanted.session:
        os.setsid()
    os.chdir(wanted.folder)
    os.environ.clear()
    os.environ.update(wanted.environment)
    os.environ[STDOUT] = str(os.fstat(1).st_ino)
    import preloaded  # imported in the server

    if preloaded.HAS_THREADS:
        os.execv(sys.executable, wanted.command)
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *own, *(path for path in sys.path if path and path not in own)]
    try:
        _run(*wanted.command[1:])
    finally:  # which multiprocessing leaves out
        threading._shutdown()
        atexit._run_exitfuncs()


def _run(how: str, *arguments: str) -> None:
    """Run what stands behind ``python`` in a command; end as an interpreter does."""
    sys.argv = [how, *arguments[1:]]
    try:
        if how == "-m":
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(arguments[0], "<string>", "exec"), vars(main))
        else:
            sys.path[0], sys.argv = os.path.dirname(how), [how, *arguments]
            runpy.run_path(how, run_name="__main__")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
