"""Alert rules on what is recorded: a target of ``amp.record`` that calls back where a statistic leaves its range."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..backend.recording import UPDATE, WEIGHT
from ..errors import AmpWarning, ConfigError, nearest
from .what_if import format_of, lost, recorded

Values = Iterator[tuple[str, Any]]


def _gradient_norms(step: Mapping[str, Any]) -> Values:
    return ((name, each["norm"]) for name, each in step["compare"]["gradients"].items())


def _norms(part: str, state: str) -> Callable[[Mapping[str, Any]], Values]:
    """Return what yields the norms of a part of ``compare``, or of a state where there is no ``compare``."""

    def values(step: Mapping[str, Any]) -> Values:
        if "compare" in step:
            return ((name, each["norm"]) for name, each in step["compare"][part].items())
        return ((name, each[state]["norm"]) for name, each in step["states"].items() if state in each)

    return values


def _update_ratios(step: Mapping[str, Any]) -> Values:
    weights = {name: float(norm) for name, norm in STATISTICS["weight_norm"](step)}
    for name, norm in STATISTICS["update_norm"](step):
        if weights[name]:
            yield name, float(norm) / weights[name]


def _shares(kind: str) -> Callable[[Mapping[str, Any]], Values]:
    def values(step: Mapping[str, Any]) -> Values:
        for name, gradient in step["gradients"].items():
            counts = gradient["true" if kind == "flushed" else "scaled"]
            total = counts["zero"] + counts["inf"] + counts["nan"] + sum(counts["exponents"].values())
            if total:
                yield name, counts[kind] / total

    return values


def _state_norms(step: Mapping[str, Any]) -> Values:
    for param, states in step["states"].items():
        yield from ((f"{param}/{name}", each["norm"]) for name, each in states.items())


STATISTICS: dict[str, Callable[[Mapping[str, Any]], Values]] = {
    "loss": lambda step: iter([("loss", step["loss"])] if step["loss"] is not None else []),
    "scale": lambda step: iter([("scale", step["scale"])]),
    "activation_largest": lambda step: ((row["layer"], row["largest"]) for row in step["activations"]),
    "gradient_flushed": _shares("flushed"),
    "gradient_overflow": _shares("overflow"),
    "gradient_norm": _gradient_norms,
    "weight_norm": _norms("before", WEIGHT),
    "update_norm": _norms("update", UPDATE),
    "update_ratio": _update_ratios,
    "state_norm": _state_norms,
}
"""Statistic → what gives its values of a recorded step, by name."""
OF_FORMATS = {
    f"{part}_{kind}": (of, kind)
    for part, of in (("gradient", "true"), ("scaled_gradient", "scaled"), ("state", "states"))
    for kind in ("flushed", "subnormal", "overflow", "error")
}
"""Statistic of a format → the part of a record, see ``what_if.recorded``, and the attribute of ``what_if.Lost``."""
NEEDS = (
    {"gradient_norm": ("compare",)}
    | dict.fromkeys(("weight_norm", "update_norm", "update_ratio"), ("compare", "states"))
    | {name: ("states",) for name in ("state_norm", *OF_FORMATS) if name.startswith("state_")}
)
"""Statistic → the arguments of ``amp.record`` of which it needs one."""


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
        of = "" if self.rule.format is None else f" in {self.rule.format}"
        return (
            f"step {self.step}: {self.rule.statistic}{of} of {self.name or 'the model'!r} is {self.value:.4g}, {limits}"
        )

    def _is_above(self) -> bool:
        return self.rule.above is not None and not self.value <= self.rule.above


@dataclass(frozen=True)
class Alert:
    """A rule that is checked on each recorded step.

    Args:
        statistic: of ``STATISTICS``: "loss" and "scale"; "activation_largest" by layer; of parameters the shares (0 to
            1) "gradient_flushed" (true gradients below 2**-24) and "gradient_overflow" (scaled ones above 65504), and,
            with ``compare=True``, the Euclidean norm "gradient_norm"; with ``compare=True`` or ``states=True``
            "weight_norm" (before the step, or after it), "update_norm", and "update_ratio", an update's norm divided by
            its weight's; with ``states=True`` the "state_norm" of weights, updates and optimizer states, named as in
            "0.weight/exp_avg". Of a ``format``, the names of ``OF_FORMATS``:
            what it would do to "gradient", "scaled_gradient" or "state" values.
        above, below: the rule fires for a value above or below these; nan is above. One at least.
        names: glob over layers or parameters.
        format: a name of ``unifiedamp.formats.FLOAT_FORMATS``, in use or not: the statistic is what it would do, see
            ``what_if.lost``.
        then: called with a :class:`Fired`; what it raises ends the step's call, and so training. None: warn.

    Raises:
        ConfigError: the statistic or the format is not known, they do not go together, or there is no limit.
    """

    statistic: str
    above: float | None = None
    below: float | None = None
    names: str = "*"
    then: Callable[[Fired], object] | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        known = STATISTICS if self.format is None else OF_FORMATS
        if self.format is not None:
            format_of(self.format)
        if self.statistic not in known:
            of = "" if self.format is None else " of a format"
            needs = " (give format=)" if self.statistic in OF_FORMATS else ""
            raise ConfigError(
                f"Alert: unknown statistic{of} {self.statistic!r}{needs or nearest(self.statistic, known)}; it is one "
                f"of {', '.join(known)}"
            )
        if self.above is None and self.below is None:
            raise ConfigError(f"Alert({self.statistic!r}): give above= or below=, from where on it fires")

    def fired(self, step: Mapping[str, Any]) -> Iterator[Fired]:
        """Yield an alert for each value of a recorded step that is out of range."""
        for name, value in STATISTICS[self.statistic](step) if self.format is None else self._of_format(step):
            found = float(value)
            low = self.below is not None and found < self.below
            if fnmatchcase(name, self.names) and (low or (self.above is not None and not found <= self.above)):
                yield Fired(self, step["step"], name, found)

    def _of_format(self, step: Mapping[str, Any]) -> Values:
        part, kind = OF_FORMATS[self.statistic]
        for name, values in recorded(step, part):
            found = lost(values, str(self.format))
            if found is not None:
                yield name, getattr(found, kind)


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
            ConfigError: a rule is of what is not recorded without ``compare=True`` or ``states=True``.
        """
        if record["kind"] == "header":
            for rule in self._rules:
                needs = NEEDS.get(rule.statistic, ())
                if needs and not any(record.get(name) for name in needs):
                    which = " or ".join(f"{name}=True" for name in needs)
                    raise ConfigError(f"Alert({rule.statistic!r}) needs amp.record(..., {which})")
        if record["kind"] == "step":
            for fired in (each for rule in self._rules for each in rule.fired(record)):
                _call(fired)


def _call(fired: Fired) -> None:
    if fired.rule.then is not None:
        fired.rule.then(fired)
    else:
        warnings.warn(f"amp.record: {fired}", AmpWarning, stacklevel=4)
