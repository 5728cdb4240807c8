"""A loop in a process of its own that takes its turns when asked.

What is one process's (TF32, MXNet's patches, memory, an error that a GPU does not recover from) then belongs to one
configuration alone, and turns still alternate: a process that is not asked does nothing.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from race import Ready, warm_up
from timing import Loop

PROCESSES = multiprocessing.get_context("spawn")


class RemoteError(RuntimeError):
    """A process failed.

    Args:
        remote: whose.
        reason: in one line.
    """

    def __init__(self, remote: Remote, reason: str) -> None:
        super().__init__(reason)
        self.remote = remote


class Remote:
    """A loop in another process; takes turns as :class:`turns.Loop` does.

    Args:
        build: called there with ``arguments``; returns the loop and its backend's module of ``native``.
        arguments: plain values.
        patience: seconds that it has to be warm, and for each turn.
    """

    def __init__(self, build: Callable[..., tuple[Loop, Any]], arguments: tuple[Any, ...], patience: float) -> None:
        self._patience = patience
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(theirs, build, arguments))
        self._process.start()
        theirs.close()

    def ready(self) -> Ready:
        """Wait until it is warm; called once.

        Raises:
            RemoteError: it failed, or took longer than ``patience``.
        """
        return Ready(self, *self._answer())

    def turn(self, steps: int) -> float:
        """Run some steps there and return the seconds that one took."""
        try:
            self._pipe.send(steps)
        except OSError as error:
            raise RemoteError(self, "its process has ended") from error
        return self._answer()

    def _answer(self) -> Any:
        failed, answer = True, f"no answer within {self._patience:.0f} s"
        try:
            if self._pipe.poll(self._patience):
                failed, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(10)
            answer = f"its process ended with status {self._process.exitcode}"
        if failed:
            self.close()
            raise RemoteError(self, answer)
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Any, build: Callable[..., tuple[Loop, Any]], arguments: tuple[Any, ...]) -> None:
    """Be the other process, until the pipe is closed."""
    begun = time.perf_counter()
    try:
        loop, native = build(*arguments)
        ready = warm_up(loop, native.number, native.memory, begun)
        _quiet_collector()
        pipe.send((False, (ready.losses, ready.memory, ready.ready_s)))
        while True:
            steps = pipe.recv()
            gc.collect()
            loop.turn(1)  # what others left in the caches is theirs
            pipe.send((False, loop.turn(steps)))
    except EOFError:
        pass
    except Exception as error:
        traceback.print_exception(error)
        pipe.send((True, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"))
    finally:
        # Compilers leave threads and processes behind that a normal exit would wait for.
        sys.stderr.flush()
        os._exit(0)


def _quiet_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()
