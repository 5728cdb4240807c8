"""Finds out about policies by short trainings, and says which to use and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from glob import escape
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import AmpError
from ...loss_scale import DynamicLossScale, parse_loss_scale
from ...policy import Policy
from ..interleaved import ratio
from ..tries import Tries
from ..workers import WorkerError
from .search import largest_clean, minimize_subset

if TYPE_CHECKING:  # imports numpy
    from ...forecast.forecast import Forecast

FIRST = 10
"""Steps at the beginning, none of which a good initial scale skips."""
TOP = 2.0**24
"""The scale that the search starts from: the largest that ``DynamicLossScale`` grows to."""
FORECAST_STEPS = 10
"""Steps in float32 whose values are counted, at most, where a policy does not train as well."""
FORECAST = ("float16", "float8")
"""Formats for which that is done; bfloat16 has float32's exponents, so that a forecast names nothing."""
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
        forecast_layers: those that a forecast says the policy's format would hurt; the search begins with them.
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
    forecast_layers: list[str] = field(default_factory=list)
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


class Trial(Protocol):
    """Trains from the first weights, as often as it is asked."""

    def probe(self, policy: str, scale: Any, steps: int, clean: int | None) -> dict[str, Any]:
        """Train some steps and return what ``Job.probe`` does.

        Args:
            policy: as ``Policy.parse`` reads it.
            scale: the loss scale, as a configuration holds it; None for the user's own.
            steps: at most.
            clean: end after this many applied steps in a row; None goes on.

        Raises:
            WorkerError: it failed.
        """


class Trials(Protocol):
    """What is tuned: a workload, or a script."""

    def open(self) -> AbstractContextManager[Trial]:
        """Return a context that yields a new trial."""

    def count(self, steps: int) -> Mapping[str, Any]:
        """Train some steps in float32 and return what ``ForecastRun.counted`` does.

        Raises:
            AmpError: it failed, or the backend has no forecast.
        """

    def rates(
        self, runs: Sequence[tuple[str, Any]], rounds: int, lost: Callable[[int, AmpError], None]
    ) -> dict[int, list[float]]:
        """Return the speed of each run in each round, timed interleaved.

        Args:
            runs: policy and loss scale.
            rounds: how many.
            lost: called with the index of a run that failed.
        """


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
    """Finds out about policies by training for some steps from the first weights, each time anew.

    Args:
        goal: what to search for.
        trials: what is trained.
        tries: shows each.
    """

    def __init__(self, goal: TuneGoal, trials: Trials, tries: Tries) -> None:
        self._goal, self._trials, self._tries = goal, trials, tries
        self._forecast: Forecast | None = None
        self._asked = False

    def expect(self, policies: Sequence[str]) -> None:
        """Note which policies are to be tried and timed."""
        self._tries.expect(sum(self._usual_probes(policy) + 1 for policy in policies))

    def _usual_probes(self, policy: str) -> int:
        """Return how many probes a policy takes that trains as well as float32."""
        return 3 if isinstance(_scaler(policy, self._goal), DynamicLossScale) else 1

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
        left_out = max(0, self._usual_probes(policy) - found.probes) + (not found.usable)
        self._tries.expect(-left_out)
        return found

    def _find(self, found: Finding, baseline: float | None) -> None:
        with self._trials.open() as trial:
            found.initial_scale = self._initial_scale(trial, found)
            first = self._probe(trial, found, [])
            self._judge(found, first, baseline)
            if found.usable or baseline is None:
                return
            rejected, found.reason = found.reason, ""
            layers = self._search(first["layers"], found, lambda some: self._good(trial, found, some, baseline))
            if layers is None:
                found.reason = f"{rejected}, with every layer in float32 too"
                return
            found.float32_layers = layers
            self._judge(found, self._probe(trial, found, layers), baseline)
            found.policy = self._text(found.policy, layers)

    def _search(self, layers: list[str], found: Finding, good: Callable[[list[str]], bool]) -> list[str] | None:
        """Return the fewest layers that will do in float32: of those that the forecast names, or else of all."""
        found.forecast_layers = [layer for layer in self._named(found.policy) if layer in layers]
        fewest = minimize_subset(found.forecast_layers, good) if found.forecast_layers else None
        return minimize_subset(layers, good) if fewest is None else fewest

    def _named(self, policy: str) -> list[str]:
        """Return the layers that the forecast says the policy's format would hurt."""
        format = Policy.parse(policy).compute_dtype
        if format not in FORECAST:
            return []
        if not self._asked:
            self._asked = True
            self._tries.expect(1)
            self._tries.begin(f"{self._goal.backend}: forecast")
            with suppress(AmpError):  # a search of all layers needs none
                self._forecast = _forecast_of(self._trials.count(min(FORECAST_STEPS, self._goal.steps)))
        policies = self._forecast.policies if self._forecast is not None else {}
        return [*policies[format].hurt] if format in policies else []

    def _good(self, trial: Trial, found: Finding, layers: list[str], baseline: float) -> bool:
        if not layers:
            return False  # that was the first probe
        with_layers = replace(found)
        self._judge(with_layers, self._probe(trial, found, layers), baseline)
        return with_layers.usable

    def _judge(self, found: Finding, probe: dict[str, Any], baseline: float | None) -> None:
        losses = probe["losses"][-max(1, self._goal.steps // 5) :]
        good = not probe["stopped"] and losses and None not in losses
        found.loss = mean(losses) if good else None
        found.skipped = probe["skipped"][-1] if probe["skipped"] else 0
        if found.loss is None:
            found.reason = probe["stopped"] or "the loss is not finite"
        elif baseline is not None and found.loss > baseline + self._goal.tolerance * abs(baseline):
            found.reason = f"loss {found.loss:.4f} against float32's {baseline:.4f}"

    def _initial_scale(self, trial: Trial, found: Finding) -> float | None:
        """Return the largest scale, a power of two, with which none of the first steps is skipped."""
        scaler = _scaler(found.policy, self._goal)
        if not isinstance(scaler, DynamicLossScale):
            return None
        # Far up, and down by halves until ten steps in a row are applied; then from the first weights, to be sure.
        high = replace(scaler, initial_scale=TOP, max_scale=max(TOP, scaler.max_scale), growth_interval=2**31 - 1)
        halvings = round(math.log2(TOP)) + 1
        seen = self._ask(trial, found, [], high.to_dict(), FIRST + halvings, FIRST)

        def skips(scale: float) -> int:
            settings = replace(scaler, initial_scale=scale, min_scale=min(scaler.min_scale, scale)).to_dict()
            return int(self._ask(trial, found, [], settings, FIRST, None)["skipped"][-1])

        return largest_clean(skips, float(seen["scale"]))

    def _probe(self, trial: Trial, found: Finding, layers: list[str]) -> dict[str, Any]:
        return self._ask(trial, found, layers, scale_of(found, self._goal), self._goal.steps, None)

    def _ask(
        self, trial: Trial, found: Finding, layers: list[str], scale: Any, steps: int, clean: int | None
    ) -> dict[str, Any]:
        found.probes += 1
        if found.probes > self._usual_probes(found.policy):
            self._tries.expect(1)
        self._tries.begin(f"{self._goal.backend}, {found.policy}: probe {found.probes}")
        return trial.probe(self._text(found.policy, layers), scale, steps, clean)

    def time(self, findings: Sequence[Finding]) -> None:
        """Fill in the speeds, measured interleaved; the first one is float32's."""
        self._tries.begin(f"timing {len(findings)} interleaved")

        def lost(index: int, error: AmpError) -> None:
            findings[index].reason = str(error)

        runs = [(found.policy, scale_of(found, self._goal)) for found in findings]
        rates = self._trials.rates(runs, self._goal.rounds, lost)
        for index, each in rates.items():
            found = findings[index]
            found.samples_per_second = median(each)
            if 0 in rates:
                speed = ratio(each, rates[0])
                found.ratio, found.ratio_low, found.ratio_high = speed.value, speed.low, speed.high

    @staticmethod
    def _text(policy: str, layers: Sequence[str]) -> str:
        if not layers:
            return policy
        base = Policy.parse(policy)
        more = {escape(layer): "float32" for layer in layers}
        return str(base.replace(layer_overrides={**base.layer_overrides, **more}))


def _forecast_of(counted: Mapping[str, Any]) -> Forecast | None:
    from ...forecast.forecast import Forecast
    from ...forecast.start import MAX_ERROR

    return Forecast.of_counted(counted, MAX_ERROR) if counted["layers"] else None


def scale_of(found: Finding, goal: TuneGoal) -> Any:
    """Return the loss scale to run a finding with, as a configuration holds it; None for the user's own."""
    if found.initial_scale is None:
        return goal.loss_scale
    return replace(_scaler(found.policy, goal), initial_scale=found.initial_scale).to_dict()


def _scaler(policy: str, goal: TuneGoal) -> Any:
    own = goal.loss_scale
    return Policy.parse(policy).resolved_loss_scale if own is None else parse_loss_scale(own)
