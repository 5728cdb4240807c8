"""Tries policies on a script for some steps each; each try is a run of the script."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ...errors import AmpError, ConfigError
from ...measured.request import RunRequest
from ..compare.rows import BASELINE, Row
from ..tries import Shown, Tries
from ..tune.prober import Finding, Prober, Trial, TuneGoal
from ..workers import WorkerError
from .compare import ScriptOptions, compare_script, others
from .results import mean_of_last
from .run import ScriptRun
from .schedule import LEAST
from .single import count_script

READ_EVERY = 10
"""Steps from one reading of a try to the next, where not each step decides."""


@dataclass
class Tuned:
    """What was found out about a script.

    Attributes:
        findings: float32's first.
        goal: with the backend, and with the tolerance that was applied.
        session: what the script's session said of itself.
        noise: how far two runs in float32 differ in their loss, as a share of it.
    """

    findings: list[Finding]
    goal: TuneGoal
    session: Mapping[str, Any]
    noise: float


def tune_script(policies: Sequence[str], goal: TuneGoal, options: ScriptOptions, show: Shown) -> Tuned:
    """Try float32 and each policy.

    Args:
        policies: by name; empty for the script's own, or those that run and gain something on the device.
        goal: what to search for.
        options: how to run the script.
        show: shows each try.

    Raises:
        ConfigError: it does not train in float32.
    """
    tries = Tries(show)
    trials = ScriptTrials(options, goal.compile, tries)
    prober = Prober(goal, trials, tries)
    prober.expect([BASELINE, *(policy for policy in policies if policy != BASELINE)])
    tries.expect(1)  # that of the noise
    baseline = prober.find(BASELINE, None)
    if not baseline.usable or baseline.loss is None:
        raise ConfigError(f"the script does not train in float32: {baseline.reason}")
    noise = trials.noise(baseline.loss, goal.steps)
    goal = replace(goal, backend=trials.session["backend"], tolerance=max(goal.tolerance, noise))
    prober = Prober(goal, trials, tries)
    tried = [one for one in policies or others(trials.session) if one != BASELINE]
    if not policies:
        prober.expect(tried)
    findings = [baseline, *(prober.find(policy, baseline.loss) for policy in tried)]
    prober.time([one for one in findings if one.usable])
    return Tuned(findings, goal, trials.session, noise)


class ScriptTrials:
    """Trainings of a script.

    Args:
        options: how to run it.
        mode: of ``amp.compile`` in which speed is measured; empty for the script's own.
        tries: shows each.

    Attributes:
        session: what the first run's session said of itself.
    """

    def __init__(self, options: ScriptOptions, mode: str, tries: Tries) -> None:
        self._options, self._mode, self._tries = options, mode, tries
        self.session: Mapping[str, Any] = {}

    @contextmanager
    def open(self) -> Iterator[Trial]:
        """Yield trials; each is a separate process."""
        yield self

    def count(self, steps: int) -> Mapping[str, Any]:
        """Run the script for some steps in float32 and count values; see ``Trials``."""
        counted = count_script(replace(self._options, steps=steps), BASELINE, lambda _: None)
        if counted.interrupted is not None:
            raise counted.interrupted
        found: Mapping[str, Any] = json.loads(counted.content or b'{"layers": []}')
        return found

    def probe(self, policy: str, scale: Any, steps: int, clean: int | None) -> dict[str, Any]:
        """Run the script for some steps; see ``Trial``."""
        every = 1 if clean is not None else READ_EVERY
        turns = (*range(every, steps, every), steps)
        overrides = replace(self._options.overrides(policy, None), loss_scale=scale)
        request = RunRequest("steps", turns, overrides, clean=clean, command=os.getpid())
        found: dict[str, Any] = {"losses": [], "skipped": [], "stopped": "", "layers": [], "scale": 1.0}
        with ScriptRun(self._options.command, request, self._options.timeout) as run:
            session = run.expect("session")
            self.session = self.session or session
            found["layers"] = session["layers"]
            self._follow(run, found)
        return found

    def _follow(self, run: ScriptRun, found: dict[str, Any]) -> None:
        """Add the turns of a run; an exhausted loss scale is an answer, and so is an early end."""
        try:
            while (note := run.expect("turn", "end"))["kind"] == "turn":
                found["losses"] += note["losses"]
                found["skipped"] += [note["state"]["skipped"]] * max(1, len(note["losses"]))
                found["scale"] = note["state"]["scale"]
            if note["reason"] == "steps":
                run.finish()
            else:
                raise run.failure(note)
        except WorkerError as error:
            if "LossScaleExhausted" in str(error):
                found["stopped"] = str(error)
            elif error.kind != "early" or len(found["losses"]) < LEAST:
                raise

    def noise(self, loss: float, steps: int) -> float:
        """Return how far another run in float32 is from a loss, as a share of it: a script may have no seed."""
        self._tries.begin(f"{BASELINE}, once more: how far its loss differs from run to run")
        again = mean_of_last(self.probe(BASELINE, None, steps, None)["losses"])
        return abs(again - loss) / max(abs(loss), 1e-12) if again is not None else 0.0

    def rates(
        self, runs: Sequence[tuple[str, Any]], rounds: int, lost: Callable[[int, AmpError], None]
    ) -> dict[int, list[float]]:
        """Return the speed of each run in each round, in turns; see ``Trials``."""
        scales = {policy: scale for policy, scale in runs if scale is not None}
        options = replace(self._options, steps=None, rounds=rounds, loss_scales=scales)
        modes = [self._mode] if self._mode else []
        rows = compare_script(
            [policy for policy, _ in runs], modes, options, _Said(self._tries.within), lambda *_: None
        )
        for index, row in enumerate(rows):
            if not row.rates:
                lost(index, AmpError(row.reason))
        return {index: row.rates for index, row in enumerate(rows) if row.rates}


@dataclass(frozen=True)
class _Said:
    """Progress in one line."""

    begin: Callable[[str], None]

    def at(self, done: int, total: int) -> None:
        """It has come so far."""

    def finished(self, row: Row) -> None:
        """A row is finished, well or not."""
