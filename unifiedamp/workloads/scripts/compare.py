"""Runs a script under several policies: started one after another, then timed in turns."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import machine
from ...errors import AmpError
from ...measured.request import Overrides, RunRequest
from ..compare.rows import BASELINE, SCRIPT, Row, Task, set_ratios
from ..compare.run import Progress
from ..interleaved import interleave
from ..workers import WorkerError
from .results import add_turn, begin_row, finish_row, usual_step
from .run import ScriptRun
from .schedule import LEAST, STEPS, ends_of, steps_for, warm_up_of

ROOM = 1.2
"""How many times the memory of the first run must be free for the next one to run beside it."""


@dataclass(frozen=True)
class ScriptOptions:
    """What a script is run with.

    Attributes:
        command: the program and its arguments.
        steps: of each run; None for :data:`schedule.STEPS`, and more where they are fast.
        rounds: of timing.
        timeout: seconds without a sign of life after which a run counts as hung.
        serial: never keep two runs alive at the same time.
        loss_scale: for policies that scale losses; None for the script's.
        loss_scales: policy → loss scale, in its place.
        backend_options: settings of the script's backend that win over the script's.
        output: the folder for what the script prints; None keeps nothing.
    """

    command: Sequence[str]
    steps: int | None = None
    rounds: int = 5
    timeout: float = 1800.0
    serial: bool = False
    loss_scale: Any = None
    loss_scales: Mapping[str, Any] = field(default_factory=dict)
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    output: Path | None = None

    def overrides(self, policy: str | None, mode: str | None) -> Overrides:
        """Return the settings that win over the script's in one run."""
        scale = self.loss_scales.get(policy or "", self.loss_scale)
        return Overrides(policy, scale, mode, self.backend_options)


class EndedEarly(AmpError):
    """A script ended before the steps asked for.

    Attributes:
        steps: that it made.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(f"the script ended after {steps} steps")
        self.steps = steps


def compare_script(
    policies: Sequence[str],
    modes: Sequence[str],
    options: ScriptOptions,
    progress: Progress,
    save: Callable[[list[Row], bool], None],
) -> list[Row]:
    """Run a script under each policy and mode, and return the rows.

    Args:
        policies: by name; empty for float32, and the script's own or those that run and gain something.
        modes: of ``amp.compile``; empty for the script's own.
        options: how to run it.
        progress: shown what happens.
        save: called with all rows, and whether a group is done.
    """
    every: list[Row] = []
    for mode in modes or [""]:
        group = _Group(policies, mode, options, progress, functools.partial(save, every), every)
        try:
            group.run()
        except EndedEarly as early:
            del every[group.first :]
            shorter = replace(options, steps=early.steps)
            group = _Group(policies, mode, shorter, progress, functools.partial(save, every), every)
            group.note = f"the script ended after {early.steps} steps; measured on those"
            group.run(retried=True)
    return every


class _Group:
    """The runs of one compile mode, alive together until the group is done where memory suffices."""

    def __init__(
        self, policies: Sequence[str], mode: str, options: ScriptOptions, progress: Progress,
        save: Callable[[bool], None], every: list[Row],
    ) -> None:  # fmt: skip
        self._policies, self._mode, self._options = list(policies), mode, options
        self._progress, self._save, self._every = progress, save, every
        self._runs: dict[int, ScriptRun] = {}
        self._rows: list[Row] = []
        self._warm_up = warm_up_of(options.steps or STEPS)
        self._ends: list[int] = []
        self._may_restart = True
        self.first, self.note = len(every), ""

    def run(self, retried: bool = False) -> None:
        """Run all.

        Raises:
            EndedEarly: a script makes fewer steps; not where ``retried``.
        """
        self._may_restart = not retried
        with ExitStack() as stack:
            for policy in self._policies or [BASELINE]:
                self._add(policy, stack)
            if not self._policies:
                for policy in self._others:
                    self._add(policy, stack)
            self._interleave()
        for index in [index for index, row in enumerate(self._rows) if row.state == "waiting"]:
            self._alone(index)
        set_ratios(self._rows)
        self._save(True)

    _others: Sequence[str] = ()

    def _add(self, policy: str, stack: ExitStack) -> None:
        """Start a run and let it warm up; where there is no room beside the others, it waits."""
        row = Row(Task("script", policy, self._mode, SCRIPT), unit="steps")
        self._rows.append(row)
        self._every.append(row)
        if self._has_room():
            self._start(len(self._rows) - 1, stack)
        self._save(False)

    def _has_room(self) -> bool:
        if not self._runs:
            return True
        first = self._rows[min(self._runs)]
        needed = first.peak_memory if first.memory_of == "process" else None
        return not self._options.serial and (needed is None or ROOM * needed < machine.available_memory())

    def _start(self, index: int, stack: ExitStack) -> None:
        row, options = self._rows[index], self._options
        self._progress.begin(f"{row.task.policy}: starting, and the first {self._warm_up} steps")
        request = RunRequest(
            "steps", (self._warm_up,), options.overrides(row.task.policy, self._mode or None), waits=True,
            command=os.getpid(),
        )  # fmt: skip
        run = stack.enter_context(ScriptRun(options.command, request, options.timeout, self._output(index)))
        try:
            session = run.expect("session")
            begin_row(row, session)
            row.notes += [self.note] if self.note else []
            if index == 0 and not self._policies:
                self._others = others(session)
            turn = self._turn(row, run)
            self._ends = self._ends or self._schedule(usual_step(turn))
            self._runs[index] = run
        except WorkerError as error:
            self._fail(index, error)

    def _output(self, index: int) -> Path | None:
        if self._options.output is None:
            return None
        self._options.output.mkdir(parents=True, exist_ok=True)
        words = f"{self.first + index + 1}-{self._rows[index].task.policy}"
        return self._options.output / re.sub(r"[^A-Za-z0-9_-]+", "-", words)[:60]

    def _schedule(self, seconds: float) -> list[int]:
        """Return where the turns end, of all runs, by the first one's usual step."""
        rounds = self._options.rounds
        return ends_of(self._options.steps or steps_for(seconds, rounds), rounds, self._warm_up)

    def _turn(self, row: Row, run: ScriptRun, number: int = 0) -> Mapping[str, Any]:
        """Let a run have a turn, and return what it noted."""
        if number:
            run.permit(number, self._ends[number - 1], number == len(self._ends))
        try:
            turn = run.expect("turn")
            add_turn(row, turn)
            if turn["seconds"] is None:  # the script ended within it
                run.expect()
        except WorkerError as error:
            if error.kind == "early":
                self._early(len(row.losses))
            raise
        self._progress.at(turn["last"], self._ends[-1] if self._ends else STEPS)
        return turn

    def _early(self, steps: int) -> None:
        if self._may_restart and steps >= LEAST:
            raise EndedEarly(steps)
        raise WorkerError(
            f"the script ended after {steps} steps; at least {LEAST} are needed, and as many under each policy", "early"
        )

    def _interleave(self) -> None:
        if self._runs:
            self._progress.begin(f"{len(self._runs)} in turns, {len(self._ends)} rounds")
        numbers = dict.fromkeys(self._runs, 0)

        def rate(index: int) -> float:
            numbers[index] += 1
            self._turn(self._rows[index], self._runs[index], numbers[index])
            return self._rows[index].rates[-1]

        runs = {index: functools.partial(rate, index) for index in self._runs}
        for index in interleave(runs, len(self._ends), self._fail):
            self._runs[index].finish()
            self._finish(index)

    def _alone(self, index: int) -> None:
        """Run one that had no room beside the others."""
        self._runs.clear()
        with ExitStack() as stack:
            self._start(index, stack)
            self._interleave()

    def _finish(self, index: int) -> None:
        finish_row(self._rows[index])
        self._progress.finished(self._rows[index])

    def _fail(self, index: int, error: AmpError) -> None:
        """Note a failure; a run that had no memory beside others gets another try, alone."""
        if isinstance(error, EndedEarly):
            raise error
        row, run = self._rows[index], self._runs.pop(index, None)
        if run is not None:
            run.close()
        if isinstance(error, WorkerError) and error.kind == "memory" and self._runs:
            self._rows[index] = fresh = Row(row.task, unit=row.unit)
            self._every[self.first + index] = fresh
            return
        row.state, row.reason, row.rates = "failed", str(error), []
        self._progress.finished(row)


def others(session: Mapping[str, Any]) -> list[str]:
    """Return what to compare with float32: the script's own policy, or else the mixed ones that gain something."""
    if session["own_policy"] not in ("", BASELINE):
        return [session["own_policy"]]
    mixed = {name: one for name, one in session["policies"].items() if name.startswith("mixed_") and one["ok"]}
    return [name for name, one in mixed.items() if one["helps"] is not False] or list(mixed)[:1]
