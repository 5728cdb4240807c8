"""One record of a step for all ranks: on which a number overflowed first, and whether the sum of gradients made it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend.recording import LocalStep, RankMessages, RecordedStep
from ..errors import AmpWarning
from .counts import Distribution, all_finite
from .nonfinite_origin import first_activation, first_gradient
from .sinks import Record, number
from .sketched import rank_layers_to_json, to_json

LAST_WAIT = 10.0
"""Seconds for which the first rank waits, at the end of a recording, for the last messages of the others."""


def summarize(seen: LocalStep, reduced: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
    """Return what one rank says of a recorded step.

    Args:
        seen: what it computed.
        reduced: names of its gradients that are not finite after the sum.
        order: its parameters in the order in which their layers ran.
    """
    loss = seen.loss
    bad = [name for name, finite in seen.finite.items() if not finite]
    compared: dict[str, Any] = {}
    if seen.sketches is not None:
        compared["local"] = {name: to_json(each) for name, each in seen.sketches.gradients.items()}
        compared["layers"] = rank_layers_to_json(seen.activations, seen.sketches)
    first = first_activation(seen.activations)
    places = [index for index, each in enumerate(seen.activations) if not math.isfinite(each.largest)]
    return {
        "rank": seen.rank,
        "loss": number(loss),
        "first_activation": first,
        "place": places[0] if places else None,
        "non_finite": bool(bad or reduced or (loss is not None and not math.isfinite(loss))),
        "first_gradient": first_gradient(bad, order),
        "gradients": bad,
        "looked": bool(seen.finite),
        "reduced": list(reduced),
        **compared,
    }


def merge(step: int, summaries: Sequence[Mapping[str, Any]], ranks: Sequence[int], order: Sequence[str]) -> Record:
    """Return the record of all ranks.

    Args:
        step: its number.
        summaries: of the ranks that answered, see :func:`summarize`.
        ranks: all of them.
        order: parameters in the order in which their layers ran.
    """
    answered = sorted(summaries, key=lambda each: int(each["rank"]))
    there = {each["rank"] for each in answered}
    told = any(each["non_finite"] for each in answered)  # else an inf of a forward pass is usual, as that of a mask
    bad = [each for each in answered if told and (each["place"] is not None or each["gradients"])]
    return {
        "kind": "ranks",
        "step": step,
        "count": len(ranks),
        "missing": [rank for rank in ranks if rank not in there],
        "first": _first(answered, order) if told else None,
        "bad": [
            {key: each[key] for key in ("rank", "loss", "first_activation", "first_gradient", "gradients")}
            for each in bad
        ],
        **_compared(answered),
    }


def _compared(answered: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ``unifiedamp diff`` compares, by rank; nothing where no sketches were recorded."""
    told = [each for each in answered if "local" in each]
    parts = {name: {str(each["rank"]): each[name] for each in told} for name in ("local", "layers", "loss")}
    return {"local": parts["local"], "layers": parts["layers"], "losses": parts["loss"]} if told else {}


def _first(answered: Sequence[Mapping[str, Any]], order: Sequence[str]) -> dict[str, Any] | None:
    """Return where inf or nan appeared first: in a forward pass, else in a backward pass, else in the sum."""
    forward = [each for each in answered if each["place"] is not None]
    if forward:
        place = min(each["place"] for each in forward)
        ranks = [each["rank"] for each in forward if each["place"] == place]
        found = next(each["first_activation"] for each in forward if each["place"] == place)
        return {"during": "forward", "ranks": ranks, "name": found["layer"]}
    local = {name for each in answered for name in each["gradients"]}
    if local:
        name = first_gradient(local, order) or ""
        ranks = [each["rank"] for each in answered if name in each["gradients"]]
        return {"during": "backward", "ranks": ranks, "name": name}
    reduced = {name for each in answered for name in each["reduced"]}
    if reduced and all(each["looked"] for each in answered):
        return {"during": "reduction", "ranks": [], "name": first_gradient(reduced, order) or ""}
    return None


@dataclass
class _Pending:
    """A recorded step whose messages have not all come."""

    own: Sequence[Mapping[str, Any]]
    order: Sequence[str]
    counts: Mapping[str, Any] | None


class MergedRanks:
    """Merges recorded steps of several ranks; the first rank gets the records.

    Args:
        messages: from the other ranks; None where this process has all of them.

    Attributes:
        first: whether this process writes.
        count: how many processes there are.
    """

    def __init__(self, messages: RankMessages | None) -> None:
        self._messages = messages
        self.first = messages is None or messages.rank == min(messages.ranks)
        self.count = 1 if messages is None else len(messages.ranks)
        self._pending: dict[int, _Pending] = {}

    def note(
        self, step: int, seen: RecordedStep, order: Sequence[str], skipped: bool, distributions: Mapping[str, Any]
    ) -> list[Record]:
        """Take what this process recorded of a step; return the records that are complete.

        Args:
            step: its number.
            seen: what was recorded.
            order: parameters in the order in which their layers ran.
            skipped: the step was not applied.
            distributions: the gradients as the record of the step has them.
        """
        if not seen.local:
            return []
        own = _summaries(seen, order, skipped, unreduced=seen.unreduced or self._messages is None)
        if self._messages is None:
            return [merge(step, own, [each["rank"] for each in own], order)]
        counts = distributions if seen.sharded or seen.unreduced else None
        if not self.first:
            self._messages.post(step, json.dumps({"ranks": own, "counts": counts}, separators=(",", ":")))
            return []
        self._pending[step] = _Pending(own, order, counts)
        return [self._merged(number) for number in list(self._pending) if self._messages.ready(number, 0.0)]

    def end(self, wait: bool) -> list[Record]:
        """Return the records of what is left, of those ranks that answer; ``wait`` for them a little."""
        if self._messages is not None and not self.first and not self._messages.received():
            warnings.warn(
                f"amp.record on rank {self._messages.rank}: rank {min(self._messages.ranks)}, which writes the records "
                "of all ranks, records nothing, so nothing was written; call amp.record on all ranks",
                AmpWarning,
                stacklevel=4,
            )
        found = []
        for step in list(self._pending):
            assert self._messages is not None
            wait = wait and self._messages.ready(step, LAST_WAIT)  # a rank that is gone is waited for once
            found.append(self._merged(step))
        return found

    def _merged(self, step: int) -> Record:
        assert self._messages is not None
        pending = self._pending.pop(step)
        said = [json.loads(text) for text in self._messages.take(step).values()]
        told = [*pending.own, *(each for process in said for each in process["ranks"])]
        here = len(pending.own)  # replicas of a process; each has as many
        ranks = [process * here + place for process in self._messages.ranks for place in range(here)]
        record = merge(step, told, ranks, pending.order)
        if pending.counts is None:
            return record
        return {**record, "gradients": _added([pending.counts, *(each["counts"] or {} for each in said)])}


def _summaries(seen: RecordedStep, order: Sequence[str], skipped: bool, unreduced: bool) -> list[dict[str, Any]]:
    """Return the summaries of the ranks of this process. Where its gradients are those before they were reduced, what
    these became is known from sketches, or from the decision alone.
    """
    if not unreduced:
        reduced = [name for name, counts in seen.gradients.items() if not all_finite(counts.scaled)]
        return [summarize(seen.local[0], reduced, order)]
    summaries = [summarize(each, [], order) for each in seen.local]
    fine = all(each["place"] is None and not each["gradients"] for each in summaries)
    if skipped and fine:
        sums = {} if seen.sketches is None else seen.sketches.gradients
        reduced = [name for name, each in sums.items() if not math.isfinite(each.norm)]
        summaries[0] |= {"reduced": reduced or [""], "non_finite": True}
    return summaries


def _added(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of all shards of each gradient."""
    total: dict[str, dict[str, Distribution]] = {}
    for part in parts:
        for name, forms in part.items():
            for form, saved in forms.items():
                found = Distribution.from_json(saved)
                before = total.setdefault(name, {}).get(form)
                total[name][form] = found if before is None else before.plus(found)
    return {name: {form: each.to_json() for form, each in forms.items()} for name, forms in total.items()}
