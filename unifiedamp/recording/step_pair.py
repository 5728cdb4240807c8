"""One step of two recorded runs: what differs in it, causes first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .alignment import Pairs, layers_in_order, pair_rows, size_of
from .distance import APART, EPS, Distance, limit_of, lowest, measure, numbers, relative
from .divergence import Divergence
from .nonfinite_origin import layer_of, run_order
from .ranks_of_step import RankCount, RanksOfStep
from .same_model import Pairing

AMPLIFIED = 4.0
"""How many times farther apart a tensor may be than those that it is computed from."""
TURNED = 2.0
"""Rounding of relative size d turns the sign of a part of about d of the values: it switches so many gradients on or
off at the kinks of ReLU and maxima, and Adam's first updates. Those are as much as this times sqrt(d) apart."""
SMALL = 0.25
"""Gradients are compared relative to this part of the largest gradient of their layer at least: a bias before a batch
norm has a gradient of rounding errors alone."""

Sketched = Mapping[str, Any]


@dataclass
class Comparison:
    """What holds for all steps of two runs.

    Attributes:
        pairing: which tensors belong together.
        dtype: the lower-precision compute dtype of both runs.
        params: the lower-precision dtype of both runs' parameters.
        ulp: distance from which tensors differ; None: the usual one of each dtype.
        same_dtype: both runs have one compute dtype and one framework, and emulate it or not, so that each layer
            computes in the same one.
        adaptive: an optimizer divides gradients by their size, so that rounding turns signs of updates.
        ranks: of each run.
        drifts: weight → the largest distance that its gradients had so far.
    """

    pairing: Pairing
    dtype: str
    params: str
    ulp: float | None
    same_dtype: bool
    adaptive: bool
    ranks: tuple[RankCount, RankCount]
    drifts: dict[str, float] = field(default_factory=dict)


class StepPair:
    """One step of two runs.

    Args:
        a, b: its records.
        before: the records of the step that was compared last; None for the first.
        about: what holds for all steps.
    """

    def __init__(
        self, a: dict[str, Any], b: dict[str, Any], before: tuple[dict[str, Any], dict[str, Any]] | None,
        about: Comparison,
    ) -> None:  # fmt: skip
        self._a, self._b, self._before, self._about = a, b, before, about
        self._part = about.pairing.part
        self._ranks = RanksOfStep(a, b, about.ranks, layouts=self._part == "sketch")
        self._seen = 0.0
        """The largest distance that was found so far in this step, and is rounding."""
        self._apart: dict[str, float] = {}
        """Weight → the distance of its values when the step began."""

    def differences(self) -> Iterator[Divergence]:
        """Yield what differs, causes first."""
        yield from self._weights()
        yield from self._layers()
        yield from self._loss()
        yield from self._gradients()
        yield from self._decision()
        yield from self._updates()

    # -- weights ---------------------------------------------------------------------------------------------------

    def _weights(self) -> Iterator[Divergence]:
        gap = 0 if self._before is None else self._a["step"] - self._before[0]["step"]
        for name, other_name, one, other in self._pairs("before"):
            distance = measure(one, other, self._part)
            self._apart[name] = distance.relative
            if gap == 1:
                yield from self._written(name, other_name, one, other)
                continue
            limit = self._limit(self._about.params if self._about.same_dtype or not gap else self._about.dtype)
            note, part = "", "initial weights"
            if self._before is not None:
                limit, part = limit * gap, "between recorded steps"
                note = f"they were alike after step {self._before[0]['step']}: record every step to see more"
            if distance.relative > limit:
                yield self._found(part, name, distance, self._about.params, limit, note, other=other_name)

    def _written(self, name: str, other_name: str, one: Sketched, other: Sketched) -> Iterator[Divergence]:
        """Compare what changed the weight since the step before, in which both runs updated it alike."""
        assert self._before is not None
        changes = []
        for step, own, now in ((self._before[0], name, one), (self._before[1], other_name, other)):
            changes.append(_change(step["compare"], own, now))
        lengths = [math.hypot(*change) for change in changes]
        apart = math.dist(*changes) if self._part == "sketch" else abs(lengths[0] - lengths[1])
        largest = max(numbers(one, "sketch")[0], numbers(other, "sketch")[0])
        limit = self._limit(self._about.params)
        if not apart <= limit * largest and any(map(math.isfinite, lengths)):
            distance = Distance(apart / largest if largest else math.inf, None, math.inf)
            which = "first" if lengths[0] >= lengths[1] else "second"
            note = f"the {which} run changed it after step {self._before[0]['step']} had ended"
            yield self._found(
                "between recorded steps", name, distance, self._about.params, limit, note, other=other_name
            )

    # -- forward ---------------------------------------------------------------------------------------------------

    def _layers(self) -> Iterator[Divergence]:
        rows, others = self._a["compare"]["layers"], self._b["compare"]["layers"]
        if self._ranks.incomplete:
            return
        if self._ranks.differ:
            yield from self._layers_of_ranks(*self._ranks.whole())
            return
        pairs = pair_rows(rows, others, self._about.pairing.names)
        computed = False
        last = (-1, -1)
        for i, j in [*pairs, (len(rows), len(others))]:
            if self._about.pairing.names:
                yield from self._ran_alone(rows[last[0] + 1 : i], others[last[1] + 1 : j])
            if i == len(rows):
                break
            last = i, j
            yield from self._layer(rows[i], others[j], computed, self._part)
            computed |= rows[i]["place"] == "output"
        for rank, own, theirs in self._ranks.others():
            yield from self._layers_of_ranks(own, theirs, f"on rank {rank}")

    def _layers_of_ranks(self, rows: list[Any], others: list[Any], note: str = "") -> Iterator[Divergence]:
        part, computed = "batch" if self._part == "sketch" else "norm", False
        for i, j in pair_rows(rows, others, self._about.pairing.names):
            yield from self._layer(rows[i], others[j], computed, part, note)
            computed |= rows[i]["place"] == "output"

    def _ran_alone(self, rows: list[Any], others: list[Any]) -> Iterator[Divergence]:
        for which, alone in (("first", rows), ("second", others)):
            for row in alone:
                if row["place"] == "output":
                    note = f"the {which} run alone ran it here"
                    yield self._found("forward", row["layer"], APART, self._about.dtype, 0.0, note, row["kind"])

    def _layer(self, one: Any, other: Any, computed: bool, part: str, note: str = "") -> Iterator[Divergence]:
        """Compare what went into a layer or came out of it; ``computed``: layers have run before."""
        stage = "forward" if computed or one["place"] == "output" else "data"
        if one["place"] == "input" and computed:
            note = note or "its input, which an operation before it made"
        kind, name, other_name = one["kind"], one["layer"], other["layer"]
        if name and name == other_name and kind != other["kind"]:
            note = note or f"it is a {kind} in the first run and a {other['kind']} in the second"
        if one["shape"] != other["shape"] and (self._part != "ordered" or size_of(one) != size_of(other)):
            note = f"shapes {tuple(one['shape'])} and {tuple(other['shape'])}"
            yield self._found(stage, name, APART, self._about.dtype, 0.0, note, kind, other_name)
            return
        distance = measure(one, other, part)
        dtype = lowest([str(one["dtype"]), str(other["dtype"]), self._about.dtype])
        own = [apart for weight, apart in self._apart.items() if layer_of(weight) == name]
        limit = max(self._limit(dtype), AMPLIFIED * max(self._seen, *own, 0.0))
        if distance.relative > limit:
            yield self._found(stage, name, distance, dtype, limit, note, kind, other_name)
        if self._about.same_dtype and one["dtype"] != other["dtype"]:
            note = f"computed in {one['dtype']} and in {other['dtype']}"
            yield self._found(stage, name, distance, dtype, limit, note, kind, other_name)
        self._seen = max(self._seen, distance.relative)

    def _loss(self) -> Iterator[Divergence]:
        if self._ranks.incomplete:
            return
        values = self._ranks.losses()
        distance = relative(*values)
        limit = max(self._limit(self._about.dtype), AMPLIFIED * self._seen)
        if distance > limit:
            note = (
                f"{values[0]:g} and {values[1]:g}, of outputs that were alike: other labels, or another loss function"
            )
            yield self._found("forward", "the loss", Distance(distance, None, distance), self._about.dtype, limit, note)

    # -- backward --------------------------------------------------------------------------------------------------

    def _gradients(self) -> Iterator[Divergence]:
        """Yield gradients that differ, the last layer's first; where every rank's own are alike, the sum made it."""
        local = False
        for note, ours, theirs in self._ranks.local():
            local = True
            yield from self._gradients_of("backward", ours, theirs, self._about.pairing.weights, note)
        ours, theirs = (each["compare"]["gradients"] for each in (self._a, self._b))
        yield from self._gradients_of("reduction" if local else "backward", ours, theirs, self._about.pairing.weights)

    def _gradients_of(
        self, stage: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], pairs: Pairs, note: str = ""
    ) -> Iterator[Divergence]:
        known = {a: b for a, b in pairs if a in ours and b in theirs}
        order = run_order(list(known), layers_in_order(self._a["compare"]))
        floors = _floors(ours), _floors(theirs)
        turned = TURNED * math.sqrt(self._seen)
        for name in reversed(order):
            one, other = ours[name], theirs[known[name]]
            floor = SMALL * max(floors[0][layer_of(name)], floors[1][layer_of(known[name])])
            distance = measure(one, other, self._part, floor)
            dtype = lowest([str(one["dtype"]), str(other["dtype"]), self._about.dtype])
            limit = max(self._limit(dtype), AMPLIFIED * self._seen, turned)
            if distance.relative > limit:
                yield self._found(stage, name, measure(one, other, self._part), dtype, limit, note, other=known[name])
            self._seen = max(self._seen, distance.relative)

    # -- update ----------------------------------------------------------------------------------------------------

    def _decision(self) -> Iterator[Divergence]:
        if self._a["applied"] != self._b["applied"]:
            said = ["applied" if each["applied"] else "skipped" for each in (self._a, self._b)]
            yield self._found("update", "the step", APART, self._about.dtype, 0.0, f"{said[0]} and {said[1]}")

    def _updates(self) -> Iterator[Divergence]:
        """Compare what the step changed; updates may be farther apart than gradients are, but not by much."""
        drifts = self._about.drifts
        gradients = {name: (one, other) for name, _, one, other in self._pairs("gradients")}
        for name, pair in gradients.items():
            drifts[name] = max(drifts.get(name, 0.0), measure(*pair, self._part).relative)
        whole = relative(*(math.hypot(*(numbers(pair[side], self._part)[0] for pair in gradients.values()), 0.0)
                           for side in (0, 1)))  # fmt: skip
        befores = {name: (one, other) for name, _, one, other in self._pairs("before")}
        for name, other_name, one, other in self._pairs("update"):
            if name not in gradients and self._part == "ordered":
                continue  # torch keeps the unbiased variance of a batch norm, others the biased one
            apart = max(drifts.get(name, self._seen), whole)
            limit = max(self._limit("float32"), AMPLIFIED * apart)
            turned = max(limit, TURNED * math.sqrt(apart)) if self._about.adaptive else limit
            distance = measure(one, other, self._part)
            larger = max(numbers(each, self._part)[0] for each in (one, other))
            weight = larger + max(numbers(each, self._part)[0] for each in befores[name])
            rounding = 4 * EPS[self._about.params] * weight  # of the weights after the update
            beyond = distance.relative > turned or distance.lengths > limit
            if beyond and not distance.relative * larger <= rounding:
                yield self._found("update", name, distance, "float32", limit, other=other_name)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _pairs(self, key: str) -> Iterator[tuple[str, str, Any, Any]]:
        a, b = self._a["compare"][key], self._b["compare"][key]
        for name, other in self._about.pairing.weights:
            if name in a and other in b:
                yield name, other, a[name], b[other]

    def _limit(self, dtype: str) -> float:
        return limit_of(dtype, self._about.ulp)

    def _found(
        self, part: str, name: str, distance: Distance, dtype: str, limit: float, note: str = "", kind: str = "",
        other: str = "",
    ) -> Divergence:  # fmt: skip
        ulp = distance.relative / EPS.get(dtype, EPS["float32"])
        other = "" if other == name else other
        step: int = self._a["step"]
        return Divergence(step, part, name, other, kind, distance.relative, ulp, distance.cosine, dtype, limit, note)


def _floors(gradients: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest finite norm of each layer's gradients."""
    found: dict[str, float] = {}
    for name, sketched in gradients.items():
        norm = float(sketched["norm"])
        found[layer_of(name)] = max(found.get(layer_of(name), 0.0), norm if math.isfinite(norm) else 0.0)
    return found


def _change(before: Mapping[str, Any], name: str, now: Sketched) -> list[float]:
    """Return the sketch of what changed a weight since a step had ended; sketches are linear."""
    (_, first), (_, update), (_, values) = (
        numbers(each, "sketch") for each in (before["before"][name], before["update"][name], now)
    )
    return [value - start - moved for value, start, moved in zip(values, first, update, strict=True)]
