"""What the ranks of two runs recorded of one step, so that runs on different numbers of ranks can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .distance import estimated, sum_of, whole_batch

Rows = list[Any]


@dataclass(frozen=True)
class RankCount:
    """The ranks, replicas or contexts of a run.

    Attributes:
        count: how many there are.
        reduction: "mean" or "sum": what their gradients become.
    """

    count: int
    reduction: str

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> RankCount:
        """Return those of a recording with this header."""
        count = int(header.get("ranks", 1))
        return cls(count, str(header.get("reduction", "mean")) if count > 1 else "")


class RanksOfStep:
    """One step of two runs.

    Args:
        a, b: its records.
        ranks: of each run.
        layouts: both runs lay tensors out alike, so that those of the ranks can be added and compared.

    Attributes:
        differ: the runs have different numbers of ranks, or reduce gradients otherwise, and the records of all ranks.
        incomplete: the same, and some ranks did not answer: what layers computed is not known for the whole batch.
    """

    def __init__(self, a: dict[str, Any], b: dict[str, Any], ranks: tuple[RankCount, RankCount], layouts: bool) -> None:
        self._steps, self._ranks, self._layouts = (a, b), ranks, layouts
        self._merged: tuple[dict[str, Any], ...] = tuple(_complete(each) for each in (a, b))
        told = all(merged or each.count == 1 for merged, each in zip(self._merged, ranks, strict=True))
        self.differ = ranks[0] != ranks[1] and told
        self.incomplete = ranks[0] != ranks[1] and not told

    def whole(self) -> tuple[Rows, Rows]:
        """Return what is known of the layers' inputs and outputs for the whole batch of each run."""
        one, other = (_whole(step, merged) for step, merged in zip(self._steps, self._merged, strict=True))
        return one, other

    def rows(self) -> tuple[Rows, Rows]:
        """Return the rows of layers that are of one batch: of the whole one where the runs divide it otherwise."""
        if self.differ:
            return self.whole()
        return self._steps[0]["compare"]["layers"], self._steps[1]["compare"]["layers"]

    def others(self) -> Iterator[tuple[str, Rows, Rows]]:
        """Yield the rows of layers of each rank but the first, of runs with one number of ranks."""
        one, other = (each.get("layers", {}) for each in self._merged)
        ranks = [] if self.differ or self.incomplete else sorted(one, key=int)[1:]
        yield from ((rank, one[rank], other[rank]) for rank in ranks if rank in other)

    def local(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield gradients before the sum over ranks: of each rank, or of all together; and of which."""
        if not any(self._merged) or self.incomplete:
            return
        if self.differ:
            if self._layouts:
                yield self._together(), self._reduced(0), self._reduced(1)
            return
        one, other = (each.get("local", {}) for each in self._merged)
        for rank in sorted(one, key=int):
            if rank in other and (self._layouts or all(_has_ordered(each[rank]) for each in (one, other))):
                yield f"on rank {rank}", one[rank], other[rank]

    def losses(self) -> list[float]:
        """Return the loss of each run: of several ranks their mean or sum, as it is of the gradients; where ranks of a
        run did not answer, that of the first ones.
        """
        found = []
        merged_alike = self._merged if self.differ or all(self._merged) else ({}, {})
        for step, merged, ranks in zip(self._steps, merged_alike, self._ranks, strict=True):
            told = [merged["losses"][rank] for rank in sorted(merged["losses"], key=int)] if merged else [step["loss"]]
            if ranks.reduction == "sum":
                told = [each for each in told if each is not None]  # a context without a batch has none
            values = [float("nan" if each is None else each) for each in told]
            found.append(sum(values) / (len(values) if ranks.reduction == "mean" else 1))
        return found

    def _together(self) -> str:
        reductions = sorted({each.reduction for each in self._ranks if each.reduction})
        return f"in the {' or '.join(reductions)} of the ranks' own gradients"

    def _reduced(self, side: int) -> dict[str, Any]:
        """Return what the gradients of all ranks become, as computed from those of each."""
        merged, ranks = self._merged[side], self._ranks[side]
        if not merged:
            return {name: estimated(each) for name, each in self._steps[side]["compare"]["gradients"].items()}
        local = [merged["local"][rank] for rank in sorted(merged["local"], key=int)]
        names = dict.fromkeys(name for rank in local for name in rank)
        if ranks.reduction == "mean":  # one that a rank did not tell is not known
            names = {name: None for name in names if all(name in rank for rank in local)}
        divisor = len(local) if ranks.reduction == "mean" else 1
        return {name: sum_of([rank[name] for rank in local if name in rank], divisor) for name in names}


def _complete(step: dict[str, Any]) -> dict[str, Any]:
    """Return what all ranks recorded; nothing where one of them did not answer, or there is one alone."""
    merged: dict[str, Any] = step.get("ranks") or {}
    return merged if "local" in merged and "layers" in merged and not merged["missing"] else {}


def _has_ordered(gradients: Mapping[str, Any]) -> bool:
    return all("ordered" in each for each in gradients.values())


def _whole(step: dict[str, Any], merged: dict[str, Any]) -> Rows:
    if not merged:
        return list(step["compare"]["layers"])
    ranks = [merged["layers"][rank] for rank in sorted(merged["layers"], key=int)]
    return [whole_batch(rows) for rows in zip(*filter(None, ranks), strict=False)]  # one may have had no batch
