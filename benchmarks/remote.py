"""A loop in a separate process that runs its turns on request.

Process-wide state (TF32, MXNet's patches, memory, unrecoverable GPU errors) is then limited to one configuration.
Turns still alternate: a process is idle until it is asked to run one.
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
        remote: the failed process.
        reason: one line.
    """

    def __init__(self, remote: Remote, reason: str) -> None:
        super().__init__(reason)
        self.remote = remote


class Remote:
    """A loop in another process, with the interface of :class:`turns.Loop`.

    Args:
        build: called in the process with ``arguments``; returns the loop and the backend's module of ``native``.
        arguments: plain values.
        patience: timeout in seconds, for the warm-up and for each turn.
    """

    def __init__(self, build: Callable[..., tuple[Loop, Any]], arguments: tuple[Any, ...], patience: float) -> None:
        self._patience = patience
        self._pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(theirs, build, arguments))
        self._process.start()
        theirs.close()

    def ready(self) -> Ready:
        """Wait until the loop is warm; call once.

        Raises:
            RemoteError: the process failed, or took longer than ``patience``.
        """
        return Ready(self, *self._answer())

    def turn(self, steps: int) -> float:
        """Run ``steps`` steps in the process; return the seconds per step."""
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
    """Main function of the process; returns when the pipe is closed."""
    begun = time.perf_counter()
    try:
        loop, native = build(*arguments)
        ready = warm_up(loop, native.number, native.memory, begun)
        _quiet_collector()
        pipe.send((False, (ready.losses, ready.memory, ready.ready_s)))
        while True:
            steps = pipe.recv()
            gc.collect()
            loop.turn(1)  # warms the caches after the other loop's turn
            pipe.send((False, loop.turn(steps)))
    except EOFError:
        pass
    except Exception as error:
        traceback.print_exception(error)
        pipe.send((True, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"))
    finally:
        # Compilers leave threads and processes running that a normal exit would wait for.
        sys.stderr.flush()
        os._exit(0)


def _quiet_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()
