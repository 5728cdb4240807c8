"""Processes that run functions together, under a watchdog: one that hangs is shown with the stacks of all."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..faults.laid import laid_over, lay_over_all

SECONDS = 60.0
"""How long processes may work on one answer."""
GRACE = 5.0
"""How long the others may go on when one has failed."""

Program = Callable[..., Iterator[Any]]
"""Called with a process's index, the number of processes and the arguments; yields its answers."""


class RanksFailedError(Exception):
    """A process raised, died or hung.

    Attributes:
        answers: of each process, those that came before.
    """

    def __init__(self, why: str, answers: list[list[Any]]) -> None:
        super().__init__(why)
        self.answers = answers


class RankProcesses:
    """Started once, then given one program after another; after a failure started anew.

    Args:
        count: how many.
        method: how they are started ("spawn", "forkserver").
        setup: called first in each with its index, their number and a folder that they share; must be picklable.
        seconds: how long they may work on one answer.
        beside: what runs in a further process each, and serves those until they end; must be picklable.
        starting: seconds that their start may take besides, where each of them imports a framework.
    """

    def __init__(
        self,
        count: int,
        method: str = "spawn",
        setup: Callable[[int, int, str], None] | None = None,
        seconds: float = SECONDS,
        beside: Sequence[Callable[[], object]] = (),
        starting: float = 0.0,
    ) -> None:
        self.count, self.seconds, self._starting = count, seconds, starting
        self._context: Any = multiprocessing.get_context(method)
        self._setup, self._beside = setup, tuple(beside)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[Any] = []
        self._servers: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, program: Program, *args: Any) -> list[list[Any]]:
        """Run a picklable program in each process; return the answers of each.

        Raises:
            RanksFailedError: one raised, died or hung; all are ended.
        """
        begins = not self._processes
        if begins:
            self._start()
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):  # it died as it began; what it said last is read below
                pipe.send((program, args, self.seconds))
        answers: list[list[Any]] = [[] for _ in self._pipes]
        try:
            why = self._collect(answers, self._starting if begins else 0.0)
        except BaseException:
            self.close()
            raise
        if why:
            self.close()
            raise RanksFailedError(why, answers)
        return answers

    def close(self) -> None:
        """End the processes. Idempotent."""
        for process in (*self._processes, *self._servers):
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._servers, self._pipes, self._folder = [], [], [], None
        atexit.unregister(self.close)

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        atexit.register(self.close)
        for serve in self._beside:
            self._servers.append(self._context.Process(target=serve, daemon=True))
            self._servers[-1].start()
        for index in range(self.count):
            ours, theirs = self._context.Pipe()
            args = (theirs, index, self.count, self._folder.name, self._setup, laid_over(), SECONDS + self._starting)
            process = self._context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _collect(self, answers: list[list[Any]], starting: float) -> str:
        """Fill in answers until all are done; return why not."""
        working = dict(enumerate(self._pipes))
        errors: list[str] = []
        end = time.monotonic() + self.seconds + GRACE + starting
        while working and (left := end - time.monotonic()) > 0:
            for pipe in wait(list(working.values()), left):
                index = self._pipes.index(pipe)  # type: ignore[arg-type]  # one of these
                state, value = self._message(index)
                if state == "answer":
                    answers[index].append(value)
                    end = end if errors else time.monotonic() + self.seconds + GRACE
                    continue
                del working[index]
                if state == "error":
                    errors.append(f"process {index} of {self.count}: {value}")
                    end = min(end, time.monotonic() + GRACE)
        if errors:
            return "\n".join(errors)
        return self._stacks(sorted(working)) if working else ""

    def _message(self, index: int) -> tuple[str, Any]:
        try:
            state, value = self._pipes[index].recv()
        except (EOFError, OSError):
            self._processes[index].join(GRACE)
            return "error", f"it died with exit code {self._processes[index].exitcode}"
        return state, value

    def _stacks(self, hanging: Sequence[int]) -> str:
        said = [f"processes {list(hanging)} of {self.count} gave no answer within {self.seconds:g} seconds"]
        for index in range(self.count):
            file = Path(str(self._folder and self._folder.name), f"stacks{index}")
            stacks = file.read_text() if file.exists() else ""
            state = "it had not begun: it was being started" if index in hanging else "it had ended its work"
            said.append(f"-- stacks of process {index}\n{stacks if index in hanging and stacks else state}")
        return "\n".join(said)


def _serve(
    pipe: Connection,
    index: int,
    count: int,
    folder: str,
    setup: Callable[[int, int, str], None] | None,
    faults: Any,
    seconds: float,
) -> None:
    with open(Path(folder, f"stacks{index}"), "w", encoding="utf-8") as stacks, contextlib.suppress(EOFError, OSError):
        faulthandler.dump_traceback_later(seconds, file=stacks)
        try:
            lay_over_all(faults)
            if setup is not None:
                setup(index, count, folder)
        except BaseException:
            pipe.send(("error", traceback.format_exc()))
            return
        while True:
            faulthandler.cancel_dump_traceback_later()
            program, args, seconds = pipe.recv()
            _answer(pipe, stacks, seconds, program(index, count, *args))


def _answer(pipe: Connection, stacks: Any, seconds: float, answers: Iterator[Any]) -> None:
    try:
        faulthandler.dump_traceback_later(seconds, file=stacks)
        for answer in answers:
            pipe.send(("answer", answer))
            faulthandler.dump_traceback_later(seconds, file=stacks)
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        os._exit(1)  # the others hear of it by a broken connection, and need not wait
    pipe.send(("done", None))
