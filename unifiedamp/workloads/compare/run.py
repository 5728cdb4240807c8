"""Runs a comparison: each run in its own process, a group of runs timed interleaved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ... import machine
from ...config import plugins
from ...errors import AmpError
from ...output.files import temporary_folder
from ..interleaved import interleave
from ..workers import Worker, WorkerError
from .answers import Begun, Profile, Trained, Turn, ask
from .kernels import tensor_core_share
from .rows import Row, Task, set_ratios
from .search import largest

JOB = "unifiedamp.workloads.compare.job:make"
TURN_SECONDS = 0.5
FIRST = 64
"""The batch size that doubling starts from."""
SMALLER = 4
"""How often a batch size that was found is made smaller by a sixteenth, should a whole training not fit after all."""
GRAIN = 8
"""How close to the largest batch size that fits is close enough; Tensor Cores like multiples of it."""
MEMORY_SHARE = 0.7
"""Of the memory that is available, what one process may take while a batch size is searched for on a CPU."""
PROFILED = 5
"""Optimizer steps under the profiler."""


TIMEOUT = 1800.0
"""Compiling a large model for a GPU takes many minutes, during which nothing is heard of it."""


class Progress(Protocol):
    """Shows how far a comparison is."""

    def begin(self, what: str) -> None:
        """Something begins."""

    def at(self, done: int, total: int) -> None:
        """It has come so far."""

    def finished(self, row: Row) -> None:
        """A row is finished, well or not."""


@dataclass(frozen=True)
class Options:
    """What a comparison is made with.

    Attributes:
        config: the recipe's configuration file.
        train: settings of ``[train]`` that override the file's (epochs, samples, data).
        rounds: of timing each run.
        max_batch_size: the largest that ``--find-batch-size`` tries; None for as many as there are samples.
        profile: profile the device's kernels too.
        timeout: seconds without progress after which a run counts as hung.
    """

    config: Path
    train: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 5
    max_batch_size: int | None = None
    profile: bool = False
    timeout: float = TIMEOUT


def compare(
    groups: Sequence[Sequence[Task]], options: Options, progress: Progress, save: Callable[[list[Row], bool], None]
) -> list[Row]:
    """Run all groups and return their rows.

    Args:
        groups: runs that are compared with each other.
        options: how to run them.
        progress: shown what happens.
        save: called with all rows, and whether a group is done, whenever one is trained, finished, refused or failed.
    """
    rows = [[Row(task) for task in group] for group in groups]
    every = [row for group in rows for row in group]
    for group in rows:
        with ExitStack() as stack:
            _Group(group, options, progress, functools.partial(save, every), stack).run()
    return every


class _Group:
    """The runs of one group, their processes alive together until the group is done."""

    def __init__(
        self, rows: list[Row], options: Options, progress: Progress, save: Callable[[bool], None], stack: ExitStack
    ) -> None:
        self._rows, self._options, self._progress, self._save, self._stack = rows, options, progress, save, stack
        self._workers: dict[int, Worker] = {}
        self._windows: dict[int, int] = {}

    def run(self) -> None:
        """Train each, then time all interleaved."""
        for index, row in enumerate(self._rows):
            self._train(index, row)
            self._save(False)
        self._time()
        set_ratios(self._rows)
        for index, row in enumerate(self._rows):
            if row.rates and self._options.profile:
                self._profile(index, row)
            if row.rates:
                row.state = "done"
                self._progress.finished(row)
        self._save(True)

    def _train(self, index: int, row: Row) -> None:
        try:
            row.batch_size = row.task.batch_size or self._find_batch_size(row.task)
            self._train_as_large(index, row)
        except WorkerError as error:
            # A session that is refused was never there; what is refused later (an exhausted scale) has failed.
            self._fail(row, error, "refused" if error.kind == "refused" and index not in self._workers else "failed")

    def _train_as_large(self, index: int, row: Row) -> None:
        """Train; where the largest batch size was sought, and a whole training needs more memory, try smaller ones.

        Raises:
            WorkerError: it failed.
        """
        for left in range(0 if row.task.batch_size else SMALLER, -1, -1):
            self._progress.begin(f"{row.task} {row.batch_size}")
            worker = self._start(row.task, row.batch_size, row)
            self._workers[index] = worker
            try:
                found = ask(worker, Trained, {"do": "train"}, self._options.timeout, self._on_progress)
            except WorkerError as error:
                if error.kind not in ("memory", "crash") or not left:
                    raise
                worker.close()
                row.batch_size -= max(1, row.batch_size // 16)
                continue
            for key, value in found.model_dump().items():
                setattr(row, key, value)
            row.state = "trained"
            return

    def _on_progress(self, place: Any) -> None:
        with suppress(TypeError, ValueError):  # what is no place shows no progress
            done, total = map(int, place)
            self._progress.at(done, total)

    def _start(self, task: Task, batch_size: int, row: Row | None = None) -> Worker:
        worker = self._stack.enter_context(start_job(task.backend))
        said = ask(worker, Begun, begin(self._options, task, batch_size, self._folder()), self._options.timeout)
        if row is not None:
            row.notes = said.notes
        return worker

    def _folder(self) -> str:
        return self._stack.enter_context(temporary_folder())

    def _find_batch_size(self, task: Task) -> int:
        probe = _SizeProbe(task, self._options, self._folder, self._progress)
        try:
            found = probe.largest()
        finally:
            probe.close()
        if not found:
            raise WorkerError("not even one sample fits", "memory")
        return found

    def _time(self) -> None:
        alive = {index: row for index, row in enumerate(self._rows) if row.state == "trained"}
        if alive:
            self._progress.begin(f"timing {len(alive)} interleaved, {self._options.rounds} rounds")

        def lost(index: int, error: AmpError) -> None:
            self._fail(self._rows[index], error)

        for index in list(alive):
            try:
                self._windows[index] = self._turn_length(index)
            except WorkerError as error:
                lost(index, error)
                del alive[index]
        runs = {index: (lambda index=index: self._rate(index, self._windows[index])) for index in alive}
        for index, rates in interleave(runs, self._options.rounds, lost).items():
            self._rows[index].rates = rates
            self._rows[index].samples_per_second = median(rates) if rates else None

    def _turn_length(self, index: int) -> int:
        """Return how many windows take about ``TURN_SECONDS``; a few are run for that, and to warm up."""
        self._ask_turn(index, 3)
        seconds: float = self._ask_turn(index, 3).seconds
        return max(1, round(3 * TURN_SECONDS / seconds))

    def _rate(self, index: int, windows: int) -> float:
        found = self._ask_turn(index, windows)
        return found.samples / found.seconds

    def _ask_turn(self, index: int, windows: int) -> Turn:
        return ask(self._workers[index], Turn, {"do": "turn", "windows": windows}, self._options.timeout)

    def _profile(self, index: int, row: Row) -> None:
        try:
            request = {"do": "profile", "windows": PROFILED}
            found = ask(self._workers[index], Profile, request, self._options.timeout)
        except WorkerError as error:
            row.tensor_cores = {"reason": f"the profiler failed: {error}"}
            return
        row.tensor_cores = {"reason": found.reason} if found.kernels is None else tensor_core_share(found.kernels)

    def _fail(self, row: Row, error: AmpError, state: str = "failed") -> None:
        row.state, row.reason = state, str(error)
        self._progress.finished(row)


class _SizeProbe:
    """Looks for the largest batch size in processes that may run out of memory."""

    def __init__(self, task: Task, options: Options, folder: Callable[[], str], progress: Progress) -> None:
        self._task, self._options, self._folder, self._progress = task, options, folder, progress
        self._worker: Worker | None = None
        self._limit = machine.available_memory()

    def largest(self) -> int:
        """Return it, or 0."""
        said = self._ready()
        cap: int = max(1, said.samples // said.window)
        if self._options.max_batch_size is not None:
            cap = min(cap, self._options.max_batch_size)
        return largest(self._fits, min(FIRST, cap), cap, GRAIN)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def _ready(self) -> Begun:
        self._worker = start_job(self._task.backend)
        return ask(self._worker, Begun, begin(self._options, self._task, 1, self._folder()), self._options.timeout)

    def _fits(self, size: int) -> bool:
        self._progress.begin(f"{self._task}: trying {size}")
        if self._worker is None:
            self._ready()
        assert self._worker
        memory = None if self._limit is None else int(self._limit * MEMORY_SHARE)
        try:
            request = {"do": "fits", "batch_size": size, "memory": memory}
            answer = ask(self._worker, bool, request, self._options.timeout)
        except WorkerError as error:
            if error.kind not in ("memory", "crash"):
                raise
            answer = False
        if not answer:
            self.close()  # what is left of memory there says nothing about the next size
        return answer


def start_job(backend: str) -> Worker:
    """Return a new process that runs the recipe for a backend; several such share a device."""
    return Worker(JOB, plugins.load_plugin(backend).sharing)


def begin(options: Options, task: Task, batch_size: int, folder: str) -> dict[str, Any]:
    """Return the request that makes a run."""
    amp = {"backend": task.backend, "policy": task.policy, "compile": task.compile}
    # The scale is read after every step of the training, for its curve; the timed steps come later and read nothing.
    train = {**options.train, "batch_size": batch_size, "compile": task.compile != "off", "log_every": 1}
    return {"do": "begin", "config": str(options.config), "out": folder, "amp": amp, "train": train}
