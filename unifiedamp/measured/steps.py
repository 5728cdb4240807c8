"""The steps of one session under a measured run: noted as they pass, read in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ..backend import Backend
from ..backend.result import StepResult
from ..machine import peak_process_memory
from ..training.step_loop import StepLoop
from .readings import Readings
from .run import MeasuredRun
from .traced import Trace, TracedStep
from .turns import wait_for_turn

HEARTBEAT = 1.0
"""Seconds from one sign of life to the next, while a turn takes longer."""
SETTLING = 3
"""Minimum calls in the first turn if a call runs several steps; the first call compiles."""


class Task(Protocol):
    """What a measured run does beside noting steps.

    Attributes:
        records: whether layers are recorded.
    """

    records: bool

    def prepared(self) -> None:
        """Models and optimizers were prepared."""

    def begin(self) -> None:
        """The session is about to train."""

    def end(self) -> None:
        """The last step was made."""

    def flush(self) -> None:
        """The script ended before."""


class StepMeasure:
    """Notes the losses and the ends of a session's steps.

    A step adds a few calls of Python and never waits: losses stay on the device until the turn ends.

    Args:
        run: the process's.
        backend: the session's.
        loop: its calls.
        describe: returns what is said of the session once it trains.
        task: what else is done; None for nothing.

    Attributes:
        count: steps so far.
        describe: see the argument.
    """

    def __init__(
        self, run: MeasuredRun, backend: Backend, loop: StepLoop, describe: Callable[[], dict[str, Any]],
        task: Task | None = None,
    ) -> None:  # fmt: skip
        self._run, self._backend, self.describe, self._task = run, backend, describe, task
        self._readings = Readings(backend, loop.scaling)
        self._tracing = loop.tracing
        self._turn, self.count, self._from = 0, 0, 0
        self._until = self._event = run.request.turns[0]
        self._last = False
        self._start = self._begun = self._beat = time.perf_counter()
        self._times: list[float] = []
        self._settled = 0
        self._uncompiled = task is not None and task.records
        self._began, self._compiled = False, "off"
        self._waiting = self._calls = 0
        self._grouped = False
        self._traces: list[Trace] = []
        self._in_trace: Trace = []

    def scale_from(self, backend: Backend) -> None:
        """Read the loss scale from another session."""
        self._readings.scaler = backend.training

    def prepared(self) -> None:
        """Note that models and optimizers were prepared."""
        if self._task is not None:
            self._task.prepared()

    def before_call(self) -> None:
        """Note that a compiled step, or one of the framework's own loop, is about to run: it records by itself."""
        if self._uncompiled:
            self._uncompiled = False
            self._backend.training.run_uncompiled(False)
        if not self._began:
            self._begin()

    def mode(self, asked: str) -> str:
        """Return the mode of ``amp.compile`` in force."""
        self._compiled = self._run.request.overrides.compile or asked
        return self._compiled

    def loss(self, loss: Any, index: int) -> None:
        """Note a loss that is differentiated for the optimizer ``index``."""
        if not self._began:
            self._begin()
        if self._traces:
            self._traces[-1].append((index, loss))
            return
        if self._tracing():
            self._in_trace.append((index, loss))
            return
        if self._run.finished:
            self._run.leave()
        detach = getattr(loss, "detach", None)
        self._readings.losses.append((self.count, index, loss if detach is None else detach()))

    def after_step(self, outcome: StepResult | None = None, more: bool = False) -> None:
        """Note the end of an iteration.

        Args:
            outcome: of its last optimizer; None where it is not known.
            more: whether more steps of the same call follow. Turns end, and times are known, after the last one.
        """
        if self._traces:
            return
        if self._tracing():
            self._trace_end()
            return
        if not self._began:
            self._begin()
        if self._run.finished:
            self._run.leave()
        now = time.perf_counter()
        self.count += 1
        self._times.append(now)
        if outcome is not None:
            self._readings.outcomes.append((self.count, outcome))
        if more:
            self._waiting += 1
            return
        if self._waiting:
            self._share_time()
        self._calls += 1
        if now > self._beat:
            self._sign_of_life(now)
        if self.count >= self._event:
            self._pass()

    def _share_time(self) -> None:
        """Give the steps of one call an equal share of its time."""
        steps, self._waiting, self._grouped = self._waiting + 1, 0, True
        begun = self._times[-steps - 1] if len(self._times) > steps else self._begun
        share = (self._times[-1] - begun) / steps
        self._times[-steps:] = [begun + share * (number + 1) for number in range(steps)]

    def flush(self) -> None:
        """Note what was not noted yet: the script has ended within a turn."""
        if self._task is not None:
            self._task.flush()
        if self.count > self._from:
            self._write(None, 0)

    # -- steps that core's calls do not see --------------------------------------------------------------------------

    before_step = before_call

    def native_loss(self, loss: Any) -> None:
        """Note a loss of such a step."""
        self.loss(loss, 0)

    def native_step(self, loss: Any = None, more: bool = False) -> None:
        """Note a step of the framework's own loop."""
        if loss is not None:
            self.loss(loss, 0)
        self.after_step(more=more)

    def _trace_end(self) -> None:
        """Have a trace of the user's note its losses and the end of the step each time it runs."""
        losses, self._in_trace = self._in_trace, []

        def note(*values: Any, more: bool = False) -> None:
            for (index, _), value in zip(losses, values, strict=True):
                self.loss(value, index)
            self.after_step(more=more)

        self._backend.training.call_from_trace(note, [loss for _, loss in losses])

    # -- steps that may run only while they are traced -------------------------------------------------------------

    def traced(self, step: Callable[..., Any]) -> TracedStep:
        """Return a step that also returns the losses that it scaled."""
        return TracedStep(step, self._traces)

    def after_call(self, output: Any, ended: bool) -> Any:
        """Note a call of a traced step, and return what the step itself returned."""
        found, losses = output
        for index, each in losses.items():
            for loss in each:
                self.loss(loss, int(index))
        if ended:
            self.after_step()
        return found

    # -- turns ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._began = True
        self._run.begin(self, lambda: {**self.describe(), "compile": self._compiled})
        if self._task is not None:
            self._task.begin()
        self._beat = time.perf_counter() + HEARTBEAT

    def _sign_of_life(self, now: float) -> None:
        self._beat = now + HEARTBEAT
        if self._run.log is not None:
            self._run.log.write("alive", step=self.count)

    def _pass(self) -> None:
        """Go on after the first step of a turn, which settles, or after its last one."""
        if self.count < self._until:
            self._readings.wait()
            self._start, self._settled = time.perf_counter(), self.count
            self._event = self._until
            return
        if self._grouped and self._calls < SETTLING and not self._is_last():
            return
        self._readings.wait()
        seconds = time.perf_counter() - self._start
        self._write(seconds, self.count - self._settled)
        if self._is_last() or self._clean():
            if self._task is not None:
                self._task.end()
            self._run.leave()
        self._next_turn()

    def _is_last(self) -> bool:
        request = self._run.request
        return self._last if request.waits else self.count >= request.turns[-1]

    def _next_turn(self) -> None:
        self._turn += 1
        request = self._run.request
        if request.waits:
            self._until, self._last = wait_for_turn(self._run.folder, request, self._turn)
        else:
            self._until = next(end for end in request.turns if end > self.count)
        self._event, self._settled = min(self.count + 1, self._until), self.count
        self._start = time.perf_counter()
        self._beat = self._start + HEARTBEAT

    def _clean(self) -> bool:
        """Return whether as many steps in a row were applied as are asked for."""
        wanted = self._run.request.clean
        return wanted is not None and self._readings.clean >= wanted

    def _write(self, seconds: float | None, timed: int) -> None:
        first, self._from = self._from, self.count
        begun, self._begun = self._begun, time.perf_counter()
        times, self._times = self._times, []
        if self._run.log is None:
            self._readings.forget()
            return
        each = [round(b - a, 6) for a, b in zip([begun, *times], times, strict=False)]
        self._run.log.write(
            "turn", number=self._turn, first=first + 1, last=self.count, seconds=seconds, timed=timed,
            times=each if self._turn == 0 else [], **self._readings.take(), **self._memory(),
            warned=sorted(self._backend.spec.warned),
        )  # fmt: skip

    def _memory(self) -> dict[str, Any]:
        on_device = self._backend.device.peak_memory()
        if on_device is not None:
            return {"peak_memory": on_device, "memory_of": "device"}
        return {"peak_memory": peak_process_memory(), "memory_of": "process"}
