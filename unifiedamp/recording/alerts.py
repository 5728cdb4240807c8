"""Alert rules on what is recorded: a target of ``amp.record`` that calls back where a statistic leaves its range."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import AmpWarning, ConfigError, nearest

Values = Iterator[tuple[str, Any]]


def _norms(part: str) -> Callable[[Mapping[str, Any]], Values]:
    return lambda step: ((name, each["norm"]) for name, each in step["compare"][part].items())


def _update_ratios(step: Mapping[str, Any]) -> Values:
    before = step["compare"]["before"]
    for name, update in step["compare"]["update"].items():
        norm = float(before[name]["norm"])
        if norm:
            yield name, float(update["norm"]) / norm


def _shares(kind: str) -> Callable[[Mapping[str, Any]], Values]:
    def values(step: Mapping[str, Any]) -> Values:
        for name, gradient in step["gradients"].items():
            counts = gradient["true" if kind == "flushed" else "scaled"]
            total = counts["zero"] + counts["inf"] + counts["nan"] + sum(counts["exponents"].values())
            if total:
                yield name, counts[kind] / total

    return values


STATISTICS: dict[str, Callable[[Mapping[str, Any]], Values]] = {
    "loss": lambda step: iter([("loss", step["loss"])] if step["loss"] is not None else []),
    "scale": lambda step: iter([("scale", step["scale"])]),
    "activation_largest": lambda step: ((row["layer"], row["largest"]) for row in step["activations"]),
    "gradient_flushed": _shares("flushed"),
    "gradient_overflow": _shares("overflow"),
    "gradient_norm": _norms("gradients"),
    "weight_norm": _norms("before"),
    "update_norm": _norms("update"),
    "update_ratio": _update_ratios,
}
"""Statistic → what gives its values of a recorded step, by name."""
OF_SKETCHES = ("gradient_norm", "weight_norm", "update_norm", "update_ratio")


@dataclass(frozen=True)
class Fired:
    """An alert.

    Attributes:
        rule: the rule that it is of.
        step: the number of the recorded step.
        name: the layer, parameter or weight; "loss" or "scale".
        value: of the statistic.
    """

    rule: Alert
    step: int
    name: str
    value: float

    def __str__(self) -> str:
        limits = f"above {self.rule.above:g}" if self._is_above() else f"below {self.rule.below:g}"
        return f"step {self.step}: {self.rule.statistic} of {self.name or 'the model'!r} is {self.value:.4g}, {limits}"

    def _is_above(self) -> bool:
        return self.rule.above is not None and not self.value <= self.rule.above


@dataclass(frozen=True)
class Alert:
    """A rule that is checked on each recorded step.

    Args:
        statistic: of ``STATISTICS``: "loss" and "scale"; "activation_largest" by layer; of parameters the shares (0 to
            1) "gradient_flushed" (true gradients below 2**-24) and "gradient_overflow" (scaled ones above 65504), and,
            with ``compare=True``, the Euclidean norms "gradient_norm", "weight_norm" (before the step), "update_norm",
            and "update_ratio", an update's norm divided by its weight's.
        above, below: the rule fires for a value above or below these; nan is above. One at least.
        names: glob over layers or parameters.
        then: called with a :class:`Fired`; what it raises ends the step's call, and so training. None: warn.

    Raises:
        ConfigError: the statistic is not known, or there is no limit.
    """

    statistic: str
    above: float | None = None
    below: float | None = None
    names: str = "*"
    then: Callable[[Fired], object] | None = None

    def __post_init__(self) -> None:
        if self.statistic not in STATISTICS:
            raise ConfigError(
                f"Alert: unknown statistic {self.statistic!r}{nearest(self.statistic, STATISTICS)}; it is one of "
                f"{', '.join(STATISTICS)}"
            )
        if self.above is None and self.below is None:
            raise ConfigError(f"Alert({self.statistic!r}): give above= or below=, from where on it fires")

    def fired(self, step: Mapping[str, Any]) -> Iterator[Fired]:
        """Yield an alert for each value of a recorded step that is out of range."""
        for name, value in STATISTICS[self.statistic](step):
            found = float(value)
            low = self.below is not None and found < self.below
            if fnmatchcase(name, self.names) and (low or (self.above is not None and not found <= self.above)):
                yield Fired(self, step["step"], name, found)


class Alerts:
    """A target of ``amp.record``: ``amp.record("run.jsonl", Alerts(Alert("update_ratio", above=0.1)), compare=True)``.

    Rules are checked in order, on recorded steps alone; targets before this one have got the record by then.

    Args:
        rules: what to look for.
    """

    def __init__(self, *rules: Alert) -> None:
        self._rules: Sequence[Alert] = rules

    def write(self, record: Mapping[str, Any]) -> None:
        """Check a record.

        Raises:
            ConfigError: a rule is of norms, which are not recorded without ``compare=True``.
        """
        if record["kind"] == "header" and not record.get("compare"):
            for rule in self._rules:
                if rule.statistic in OF_SKETCHES:
                    raise ConfigError(f"Alert({rule.statistic!r}) needs amp.record(..., compare=True)")
        if record["kind"] == "step":
            for fired in (each for rule in self._rules for each in rule.fired(record)):
                _call(fired)


def _call(fired: Fired) -> None:
    if fired.rule.then is not None:
        fired.rule.then(fired)
    else:
        warnings.warn(f"amp.record: {fired}", AmpWarning, stacklevel=4)
