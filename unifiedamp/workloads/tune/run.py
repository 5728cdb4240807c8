"""Tries policies on a workload for some steps each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import AmpError, ConfigError
from ...output.files import temporary_folder
from ..compare.answers import Begun, Counted, Probe, Turn, ask
from ..compare.rows import BASELINE, Task
from ..compare.run import TURN_SECONDS, Options, begin, start_job
from ..interleaved import interleave
from ..tries import Shown, Tries
from ..workers import Worker, WorkerError
from .prober import Finding, Prober, Trial, TuneGoal


def tune(policies: Sequence[str], goal: TuneGoal, options: Options, show: Shown) -> list[Finding]:
    """Return what was found of float32, first, and of each policy.

    Args:
        policies: by name; float32 is added.
        goal: what to search for.
        options: the workload.
        show: shows each try.

    Raises:
        ConfigError: float32 itself does not train here.
    """
    prober = Prober(goal, WorkloadTrials(goal, options), Tries(show))
    prober.expect(list(dict.fromkeys([BASELINE, *policies])))
    baseline = prober.find(BASELINE, None)
    if not baseline.usable:
        raise ConfigError(f"the workload does not train in float32 on {goal.backend}: {baseline.reason}")
    findings = [baseline, *(prober.find(policy, baseline.loss) for policy in policies if policy != BASELINE)]
    prober.time([one for one in findings if one.usable])
    return findings


class WorkloadTrials:
    """Trainings of a workload.

    Args:
        goal: what to search for.
        options: the workload.
    """

    def __init__(self, goal: TuneGoal, options: Options) -> None:
        self._goal, self._options = goal, options

    @contextmanager
    def open(self) -> Iterator[Trial]:
        """Yield trials that share a process."""
        with start_job(self._goal.backend) as worker:
            yield _WorkloadTrial(self, worker, self._options.timeout)

    def count(self, steps: int) -> Mapping[str, Any]:
        """Train some steps in float32 and count values; see :class:`Trials`."""
        with start_job(self._goal.backend) as worker:
            self.begin(worker, BASELINE, "off", self._goal.loss_scale)
            return ask(worker, Counted, {"do": "count", "steps": steps}, self._options.timeout).model_dump()

    def begin(self, worker: Worker, policy: str, mode: str, scale: Any) -> None:
        """Make a new session in a worker."""
        with temporary_folder() as folder:
            request = begin(self._options, Task(self._goal.backend, policy, mode, None), None, folder)
            request["amp"]["loss_scale"] = scale
            ask(worker, Begun, request, self._options.timeout)

    def rates(
        self, runs: Sequence[tuple[str, Any]], rounds: int, lost: Callable[[int, AmpError], None]
    ) -> dict[int, list[float]]:
        """Return the speed of each run in each round; see :class:`Trials`."""
        with ExitStack() as stack:
            turns: dict[int, Callable[[], float]] = {}
            for index, (policy, scale) in enumerate(runs):
                worker = stack.enter_context(start_job(self._goal.backend))
                try:
                    self.begin(worker, policy, self._goal.compile, scale)
                    turns[index] = _turn(worker, self._options.timeout)
                except WorkerError as error:
                    lost(index, error)
            return interleave(turns, rounds, lost)


@dataclass(frozen=True)
class _WorkloadTrial:
    """Trainings in one process."""

    trials: WorkloadTrials
    worker: Worker
    timeout: float

    def probe(self, policy: str, scale: Any, steps: int, clean: int | None) -> dict[str, Any]:
        """Train some steps; see :class:`Trial`."""
        self.trials.begin(self.worker, policy, "off", scale)
        request = {"do": "probe", "steps": steps, "clean": clean}
        return ask(self.worker, Probe, request, self.timeout).model_dump()


def _turn(worker: Worker, timeout: float) -> Callable[[], float]:
    ask(worker, Turn, {"do": "turn", "windows": 3}, timeout)  # traces and compiles
    seconds = ask(worker, Turn, {"do": "turn", "windows": 3}, timeout).seconds
    windows = max(1, round(3 * TURN_SECONDS / seconds))

    def turn() -> float:
        found = ask(worker, Turn, {"do": "turn", "windows": windows}, timeout)
        return found.samples / found.seconds

    return turn


def default_out(file: Path) -> Path:
    """Return where the tuned configuration goes unless it is said: into the present folder."""
    return Path(f"{file.stem}.tuned{'.toml' if file.suffix == '.py' else file.suffix}")
