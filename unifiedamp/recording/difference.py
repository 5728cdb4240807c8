"""Where two recorded runs diverge: the first step, layer and tensor, and in which part of the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ConfigError
from .nonfinite_origin import run_order
from .reading import Recording
from .same_model import check_same_model

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8": 2.0**-3}
"""dtype → the distance from 1 to the next number, one unit in the last place (ULP)."""
ULP = 4.0
"""Distance, in ULP of a lower-precision dtype, from which two tensors count as different."""
ULP32 = 64.0
"""The same of float32, whose sums compiled kernels, other devices and other batch sizes add in another order."""
AMPLIFIED = 4.0
"""How many times farther apart updates may be than the gradients that they follow from."""


@dataclass(frozen=True)
class Divergence:
    """The first difference of two runs.

    Attributes:
        step: its step.
        part: "initial weights", "data", "forward", "backward", "reduction", "update", or "between recorded steps".
        name: the layer, parameter or weight.
        kind: the layer's class; empty for others.
        distance: Euclidean distance divided by the larger norm, as estimated from the sketches.
        ulp: the same in ULP of ``dtype``, the lower-precision one of both.
        cosine: of the angle between the tensors, estimated; None where one is zero or not finite.
        dtype: see ``ulp``.
        note: what else is known; empty for nothing.
    """

    step: int
    part: str
    name: str
    kind: str
    distance: float
    ulp: float
    cosine: float | None
    dtype: str
    note: str = ""


@dataclass(frozen=True)
class Difference:
    """What two recordings differ in.

    Attributes:
        settings: of environment and session: name, value of the first run, value of the second.
        steps: how many recorded steps both have.
        first: where they diverge; None where they do not.
    """

    settings: Sequence[tuple[str, str, str]]
    steps: int
    first: Divergence | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        first = None if self.first is None else asdict(self.first)
        if first is not None:
            first |= {key: str(first[key]) for key in ("distance", "ulp") if not math.isfinite(first[key])}
        rows = [{"setting": name, "a": a, "b": b} for name, a, b in self.settings]
        return {"settings": rows, "compared_steps": self.steps, "first": first}


def difference(a: Recording, b: Recording, ulp: float | None = None) -> Difference:
    """Compare two recordings made with ``amp.record(compare=True)``.

    Args:
        a, b: the recordings.
        ulp: distance from which tensors differ, in ULP of the lower-precision dtype; None: ``ULP32`` for float32,
            else ``ULP``.

    Raises:
        ConfigError: one was made without ``compare``, the models differ, or no step is in both.
    """
    check_same_model(a, b)
    second = {step["step"]: step for step in b.steps}
    pairs = [(step, second[step["step"]]) for step in a.steps if step["step"] in second]
    if not pairs:
        raise ConfigError("the recordings have no recorded step in common; record both with the same every=")
    found = None
    for index, (one, other) in enumerate(pairs):
        before = pairs[index - 1][0] if index else None
        same = a.header.get("compute_dtype") == b.header.get("compute_dtype")
        found = next(_Steps(one, other, _lowest(a, b), ulp, same).differences(before), None)
        if found is not None:
            break
    return Difference(list(_settings(a.header, b.header)), len(pairs), found)


def limit_of(dtype: str, ulp: float | None) -> float:
    """Return the relative distance from which tensors of a dtype differ."""
    known = dtype if dtype in EPS else "float32"
    usual = ULP32 if known in ("float32", "float64") else ULP
    return (usual if ulp is None else ulp) * EPS[known]


def _lowest(a: Recording, b: Recording) -> str:
    """Return the lower-precision compute dtype of two runs."""
    dtypes = [str(each.header.get("compute_dtype", "float32")) for each in (a, b)]
    return max(dtypes, key=lambda dtype: EPS.get(dtype, 0.0))


class _Steps:
    """One step of two runs.

    Args:
        a, b: its records.
        dtype: the lower-precision compute dtype of both runs.
        limit: in ULP; None: the usual one of each dtype.
        same: both runs have one compute dtype, so that each layer should compute in the same one.
    """

    def __init__(self, a: dict[str, Any], b: dict[str, Any], dtype: str, limit: float | None, same: bool) -> None:
        self._a, self._b, self._dtype, self._limit, self._same = a, b, dtype, limit, same

    def differences(self, before: dict[str, Any] | None) -> Iterator[Divergence]:
        """Yield what differs, causes first; ``before`` is the record of the step that was compared last."""
        yield from self._weights(before)
        yield from self._layers()
        yield from self._loss()
        yield from self._gradients()
        yield from self._decision()
        yield from self._updates()

    def _part(self, key: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        a, b = self._a["compare"][key], self._b["compare"][key]
        yield from ((name, a[name], b[name]) for name in a if name in b)

    def _weights(self, before: dict[str, Any] | None) -> Iterator[Divergence]:
        part = "initial weights" if before is None else "between recorded steps"
        note = "" if before is None else f"they were alike after step {before['step']}: record every step to see more"
        for name, one, other in self._part("before"):
            yield from self._compare(part, name, one, other, dtype="float32", note=note)

    def _layers(self) -> Iterator[Divergence]:
        for one, other in zip(self._a["compare"]["layers"], self._b["compare"]["layers"], strict=False):
            part = "data" if one["place"] == "input" else "forward"
            if one["shape"] != other["shape"]:
                note = f"shapes {tuple(one['shape'])} and {tuple(other['shape'])}"
                yield self._found(part, one["layer"], one["kind"], (math.inf, None), self._dtype, note)
                continue
            yield from self._compare(part, one["layer"], one, other, one["kind"])
            if self._same and one["dtype"] != other["dtype"]:
                note = f"computed in {one['dtype']} and in {other['dtype']}"
                yield self._found(part, one["layer"], one["kind"], _measure(one, other), _lower(one, other), note)

    def _loss(self) -> Iterator[Divergence]:
        values = [float("nan" if each["loss"] is None else each["loss"]) for each in (self._a, self._b)]
        distance = _relative(*values)
        if distance > limit_of(self._dtype, self._limit):
            yield self._found("forward", "the loss", "", (distance, None), self._dtype, f"{values[0]:g}, {values[1]:g}")

    def _gradients(self) -> Iterator[Divergence]:
        """Yield gradients that differ, the last layer's first; where every rank's own are alike, the sum made it."""
        local = list(self._local())
        if local:
            yield from local
            return
        part = "reduction" if self._ranks("a") and self._ranks("b") else "backward"
        for name, one, other in self._backward({name: (a, b) for name, a, b in self._part("gradients")}):
            yield from self._compare(part, name, one, other)

    def _local(self) -> Iterator[Divergence]:
        a, b = self._ranks("a"), self._ranks("b")
        for rank in a.keys() & b.keys() if a.keys() == b.keys() else ():
            pairs = {name: (a[rank][name], b[rank][name]) for name in a[rank] if name in b[rank]}
            for name, one, other in self._backward(pairs):
                yield from self._compare("backward", name, one, other, note=f"on rank {rank}")

    def _ranks(self, which: str) -> Mapping[str, Any]:
        merged = (self._a if which == "a" else self._b).get("ranks") or {}
        found: Mapping[str, Any] = merged.get("local", {})
        return found

    def _backward(self, pairs: Mapping[str, tuple[Any, Any]]) -> Iterator[tuple[str, Any, Any]]:
        rows = self._a["compare"]["layers"]
        last = {row["layer"]: place for place, row in enumerate(rows) if row["place"] == "output"}
        order = run_order(list(pairs), sorted(last, key=last.__getitem__))
        return ((name, *pairs[name]) for name in reversed(order))

    def _decision(self) -> Iterator[Divergence]:
        if self._a["applied"] != self._b["applied"]:
            said = ["applied" if each["applied"] else "skipped" for each in (self._a, self._b)]
            yield self._found("update", "the step", "", (math.inf, None), self._dtype, f"{said[0]} and {said[1]}")

    def _updates(self) -> Iterator[Divergence]:
        """Compare what the step changed; updates may be farther apart than gradients are, but not by much."""
        apart = max((_measure(one, other)[0] for _, one, other in self._part("gradients")), default=0.0)
        limit = max(limit_of("float32", self._limit), AMPLIFIED * apart)
        befores = {name: (one, other) for name, one, other in self._part("before")}
        for name, *afters in self._part("after"):
            if name not in befores:
                continue
            one, other = (_minus(after, first) for after, first in zip(afters, befores[name], strict=True))
            distance, cosine = _measure(one, other)
            rounding = 4 * EPS["float32"] * max(_numbers(each)[0] for each in afters)
            larger = max(one["norm"], other["norm"])
            if distance > limit and not distance * larger <= rounding:
                yield self._found("update", name, "", (distance, cosine), "float32")

    def _compare(
        self, part: str, name: str, one: Mapping[str, Any], other: Mapping[str, Any], kind: str = "", note: str = "",
        dtype: str = "",
    ) -> Iterator[Divergence]:  # fmt: skip
        measured = _measure(one, other)
        dtype = dtype or max(_lower(one, other), self._dtype, key=lambda each: EPS.get(each, 0.0))
        if measured[0] > limit_of(dtype, self._limit):
            yield self._found(part, name, kind, measured, dtype, note)

    def _found(
        self, part: str, name: str, kind: str, measured: tuple[float, float | None], dtype: str, note: str = ""
    ) -> Divergence:
        distance, cosine = measured
        ulp = distance / EPS.get(dtype, EPS["float32"])
        return Divergence(self._a["step"], part, name, kind, distance, ulp, cosine, dtype, note)


def _lower(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return str(max(one["dtype"], other["dtype"], key=lambda dtype: EPS.get(dtype, 0.0)))


def _numbers(sketched: Mapping[str, Any]) -> list[float]:
    return [float(sketched["norm"]), *map(float, sketched["sketch"])]


def _measure(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return the distance of two tensors divided by the larger norm, and the cosine of their angle."""
    (norm, *values), (other_norm, *others) = _numbers(one), _numbers(other)
    if [norm, *values] == [other_norm, *others]:
        return 0.0, 1.0 if norm else None
    if not all(map(math.isfinite, (norm, other_norm, *values, *others))):
        same = all(not math.isfinite(each) for each in (norm, other_norm))
        return (0.0 if same else math.inf), None
    if not norm or not other_norm:
        return 1.0, None
    length, other_length = math.hypot(*values) or norm, math.hypot(*others) or other_norm
    # The angle is that of the sketches; the norms are known. Written so that small distances keep their digits.
    chord = math.dist([value / length for value in values], [value / other_length for value in others])
    distance = math.hypot(norm - other_norm, chord * math.sqrt(norm * other_norm))
    return distance / max(norm, other_norm), max(-1.0, 1.0 - chord**2 / 2)


def _minus(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sketch of a difference: sketches are linear, and their norm is an estimate of its norm."""
    values = [float(x) - float(y) for x, y in zip(after["sketch"], before["sketch"], strict=True)]
    return {**after, "sketch": values, "norm": math.hypot(*values)}


def _relative(a: float, b: float) -> float:
    if a == b or (not math.isfinite(a) and not math.isfinite(b)):
        return 0.0
    if not math.isfinite(a) or not math.isfinite(b):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what differs in environment and settings."""
    for name in (
        "backend",
        "framework_version",
        "device",
        "policy",
        "loss_scale",
        "accumulate_steps",
        "every",
        "ranks",
    ):
        yield from _row(name, a.get(name), b.get(name))
    yield from _row("unifiedamp", a["unifiedamp"], b["unifiedamp"])
    one, other = a.get("environment", {}), b.get("environment", {})
    for name in dict.fromkeys([*one, *other]):
        yield from _row(name, one.get(name), other.get(name))
    plans = [{row[0]: f"{row[1]}: {row[2]}" for row in header.get("settings", ())} for header in (a, b)]
    for name in dict.fromkeys([*plans[0], *plans[1]]):
        if name not in ("policy", "loss_scale", "accumulate_steps", "device"):
            yield from _row(name, plans[0].get(name), plans[1].get(name))


def _row(name: str, a: Any, b: Any) -> Iterator[tuple[str, str, str]]:
    if a != b:
        yield name, "-" if a is None else str(a), "-" if b is None else str(b)
