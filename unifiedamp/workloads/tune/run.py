"""Tries policies on a workload for some steps each, and says which to use and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from statistics import mean, median
from typing import Any

from ...errors import AmpError, ConfigError
from ...loss_scale import DynamicLossScale, parse_loss_scale
from ...output.files import temporary_folder
from ...policy import Policy
from ..compare.answers import Begun, Probe, Turn, ask
from ..compare.rows import BASELINE, Task
from ..compare.run import TURN_SECONDS, Options, begin, start_job
from ..interleaved import interleave, ratio
from ..workers import Worker, WorkerError
from .search import largest_clean, minimize_subset

FIRST = 10
"""Steps at the beginning, none of which a good initial scale skips."""
TOP = 2.0**24
"""The scale that the search starts from: the largest that ``DynamicLossScale`` grows to."""
WORTH_IT = 1.05
"""How many times faster than float32 a policy must be to be chosen."""


@dataclass(frozen=True)
class TuneGoal:
    """What a tuning is for.

    Attributes:
        backend: by name.
        compile: the mode of ``amp.compile`` that speed is measured in.
        steps: optimizer steps of each probe.
        tolerance: how much higher than float32's the loss may be, as a share of it.
        rounds: in which speed is measured.
        loss_scale: the configuration's own; None takes each policy's.
    """

    backend: str
    compile: str
    steps: int
    tolerance: float
    rounds: int
    loss_scale: object = None


@dataclass
class Finding:
    """What was found out about one policy.

    Attributes:
        policy: as it would be written, with the layers that need float32.
        loss: the mean over the last fifth of the probe's steps; None where it was not finite.
        initial_scale: with which none of the first ten steps is skipped; None without a dynamic loss scale.
        skipped: steps that the probe skipped.
        float32_layers: those that must compute in float32 for the loss to be within the tolerance.
        probes: trainings that it took.
        ratio, ratio_low, ratio_high: times float32's samples per second: median, smallest and largest of the rounds.
        samples_per_second: the median of the rounds.
        reason: why it cannot be used; empty when it can.
    """

    policy: str
    loss: float | None = None
    initial_scale: float | None = None
    skipped: int = 0
    float32_layers: list[str] = field(default_factory=list)
    probes: int = 0
    samples_per_second: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether it trained within the tolerance."""
        return not self.reason


def tune(policies: Sequence[str], goal: TuneGoal, options: Options, begun: Callable[[str], None]) -> list[Finding]:
    """Return what was found of float32, first, and of each policy.

    Args:
        policies: by name; float32 is added.
        goal: what to search for.
        options: the workload.
        begun: called with what begins.

    Raises:
        ConfigError: float32 itself does not train here.
    """
    prober = Prober(goal, options, begun)
    baseline = prober.find(BASELINE, None)
    if not baseline.usable:
        raise ConfigError(f"the workload does not train in float32 on {goal.backend}: {baseline.reason}")
    findings = [baseline, *(prober.find(policy, baseline.loss) for policy in policies if policy != BASELINE)]
    _time([one for one in findings if one.usable], prober, goal, begun)
    return findings


def choose(findings: Sequence[Finding]) -> tuple[Finding, str]:
    """Return the one to use, and why: the fastest that is faster than float32 beyond the noise, else float32."""
    baseline, *others = findings
    faster = [one for one in others if one.usable and (one.ratio or 0) >= WORTH_IT and (one.ratio_low or 0) > 1]
    if faster:
        best = max(faster, key=lambda one: one.ratio or 0.0)
        return best, f"{best.ratio:.2f} times as fast as float32, and the loss is within the tolerance"
    usable = [f"{one.policy} {one.ratio:.2f} times as fast" for one in others if one.usable and one.ratio]
    unusable = [f"{one.policy}: {one.reason}" for one in others if not one.usable]
    return baseline, "nothing is worth changing: " + "; ".join([*usable, *unusable] or ["no other policy was tried"])


class Prober:
    """Trains a workload for some steps from its first weights, each time anew."""

    def __init__(self, goal: TuneGoal, options: Options, begun: Callable[[str], None]) -> None:
        self._goal, self._options, self._begun = goal, options, begun

    def find(self, policy: str, baseline: float | None) -> Finding:
        """Return what can be found of one policy without a clock.

        Args:
            policy: by name.
            baseline: float32's loss; None for float32 itself.
        """
        found = Finding(policy)
        try:
            self._find(found, baseline)
        except WorkerError as error:
            found.reason = str(error)
        return found

    def _find(self, found: Finding, baseline: float | None) -> None:
        with self.worker() as worker:
            found.initial_scale = self._initial_scale(worker, found)
            first = self._probe(worker, found, [])
            self._judge(found, first, baseline)
            if found.usable or baseline is None:
                return
            rejected, found.reason = found.reason, ""
            layers = minimize_subset(first["layers"], lambda some: self._good(worker, found, some, baseline))
            if layers is None:
                found.reason = f"{rejected}, with every layer in float32 too"
                return
            found.float32_layers = layers
            self._judge(found, self._probe(worker, found, layers), baseline)
            found.policy = self._text(found.policy, layers)

    def _good(self, worker: Worker, found: Finding, layers: list[str], baseline: float) -> bool:
        if not layers:
            return False  # that was the first probe
        trial = replace(found)
        self._judge(trial, self._probe(worker, found, layers), baseline)
        return trial.usable

    def _judge(self, found: Finding, probe: dict[str, Any], baseline: float | None) -> None:
        losses = probe["losses"][-max(1, self._goal.steps // 5) :]
        good = not probe["stopped"] and losses and None not in losses
        found.loss = mean(losses) if good else None
        found.skipped = probe["skipped"][-1] if probe["skipped"] else 0
        if found.loss is None:
            found.reason = probe["stopped"] or "the loss is not finite"
        elif baseline is not None and found.loss > baseline * (1 + self._goal.tolerance):
            found.reason = f"loss {found.loss:.4f} against float32's {baseline:.4f}"

    def _initial_scale(self, worker: Worker, found: Finding) -> float | None:
        """Return the largest scale, a power of two, with which none of the first steps is skipped."""
        scaler = self._scaler(found.policy)
        if not isinstance(scaler, DynamicLossScale):
            return None
        # Far up, and down by halves until ten steps in a row are applied; then from the first weights, to be sure.
        high = replace(scaler, initial_scale=TOP, max_scale=max(TOP, scaler.max_scale), growth_interval=2**31 - 1)
        halvings = round(math.log2(TOP)) + 1
        seen = self._ask(worker, found, [], high.to_dict(), FIRST + halvings, FIRST)

        def skips(scale: float) -> int:
            settings = replace(scaler, initial_scale=scale, min_scale=min(scaler.min_scale, scale)).to_dict()
            return int(self._ask(worker, found, [], settings, FIRST, None)["skipped"][-1])

        return largest_clean(skips, float(seen["scale"]))

    def _scaler(self, policy: str) -> Any:
        own = self._goal.loss_scale
        return Policy.parse(policy).resolved_loss_scale if own is None else parse_loss_scale(own)

    def _probe(self, worker: Worker, found: Finding, layers: list[str]) -> dict[str, Any]:
        return self._ask(worker, found, layers, self.scale_setting(found), self._goal.steps, None)

    def scale_setting(self, found: Finding) -> Any:
        """Return the loss scale to run a finding with, as a configuration holds it; None for its own."""
        if found.initial_scale is None:
            return self._goal.loss_scale
        scaler = replace(self._scaler(found.policy), initial_scale=found.initial_scale)
        return scaler.to_dict()

    def _ask(
        self, worker: Worker, found: Finding, layers: list[str], scale: Any, steps: int, clean: int | None
    ) -> dict[str, Any]:
        found.probes += 1
        self._begun(f"{self._goal.backend}, {found.policy}: probe {found.probes}")
        self.begin(worker, self._text(found.policy, layers), "off", scale)
        request = {"do": "probe", "steps": steps, "clean": clean}
        return ask(worker, Probe, request, self._options.timeout).model_dump()

    def begin(self, worker: Worker, policy: str, mode: str, scale: Any) -> None:
        """Make a new session in a worker."""
        with temporary_folder() as folder:
            request = begin(self._options, Task(self._goal.backend, policy, mode, None), None, folder)
            request["amp"]["loss_scale"] = scale
            ask(worker, Begun, request, self._options.timeout)

    @property
    def timeout(self) -> float:
        """Seconds without progress after which a run counts as hung."""
        return self._options.timeout

    def worker(self) -> Worker:
        """Return a new process."""
        return start_job(self._goal.backend)

    @staticmethod
    def _text(policy: str, layers: Sequence[str]) -> str:
        if not layers:
            return policy
        base = Policy.parse(policy)
        more = {escape(layer): "float32" for layer in layers}
        return str(base.replace(layer_overrides={**base.layer_overrides, **more}))


def _time(findings: Sequence[Finding], prober: Prober, goal: TuneGoal, begun: Callable[[str], None]) -> None:
    """Fill in the speeds, measured interleaved."""
    begun(f"timing {len(findings)} interleaved")
    with ExitStack() as stack:
        runs: dict[int, Callable[[], float]] = {}
        for index, found in enumerate(findings):
            worker = stack.enter_context(prober.worker())
            try:
                prober.begin(worker, found.policy, goal.compile, prober.scale_setting(found))
                runs[index] = _turn(worker, prober.timeout)
            except WorkerError as error:
                found.reason = str(error)

        def lost(index: int, error: AmpError) -> None:
            findings[index].reason = str(error)

        rates = interleave(runs, goal.rounds, lost)
    for index, each in rates.items():
        found = findings[index]
        found.samples_per_second = median(each)
        if 0 in rates:
            speed = ratio(each, rates[0])
            found.ratio, found.ratio_low, found.ratio_high = speed.value, speed.low, speed.high


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
