"""What the ranks of two runs recorded of one step, so that runs on different numbers of ranks can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .distance import estimated, mean_of, whole_batch

Rows = list[Any]


class RanksOfStep:
    """One step of two runs.

    Args:
        a, b: its records.
        counts: how many ranks each run has.

    Attributes:
        differ: the runs have different numbers of ranks, and the records of all of them.
        incomplete: the runs have different numbers of ranks, and some did not answer: what layers computed is not
            known for the whole batch.
    """

    def __init__(self, a: dict[str, Any], b: dict[str, Any], counts: tuple[int, int]) -> None:
        self._steps = a, b
        self._merged: tuple[dict[str, Any], ...] = tuple(_complete(each) for each in (a, b))
        told = all(merged or count == 1 for merged, count in zip(self._merged, counts, strict=True))
        self.differ = counts[0] != counts[1] and told
        self.incomplete = counts[0] != counts[1] and not told

    def whole(self) -> tuple[Rows, Rows]:
        """Return what is known of the layers' inputs and outputs for the whole batch of each run."""
        one, other = (_whole(step, merged) for step, merged in zip(self._steps, self._merged, strict=True))
        return one, other

    def others(self) -> Iterator[tuple[str, Rows, Rows]]:
        """Yield the rows of layers of each rank but the first, of runs with one number of ranks."""
        one, other = (each.get("layers", {}) for each in self._merged)
        ranks = [] if self.differ or self.incomplete else sorted(one, key=int)[1:]
        yield from ((rank, one[rank], other[rank]) for rank in ranks if rank in other)

    def local(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield gradients before the sum over ranks: of each rank, or the mean of all; and of which."""
        if not any(self._merged) or self.incomplete:
            return
        if self.differ:
            one, other = (_means(step, merged) for step, merged in zip(self._steps, self._merged, strict=True))
            yield "in the mean of the ranks' own gradients", one, other
            return
        one, other = (each.get("local", {}) for each in self._merged)
        yield from ((f"on rank {rank}", one[rank], other[rank]) for rank in sorted(one, key=int) if rank in other)

    def losses(self) -> list[float]:
        """Return the loss of each run: of several ranks the mean, where their numbers differ."""
        found = []
        for step, merged in zip(self._steps, self._merged, strict=True):
            told = [merged["losses"][rank] for rank in sorted(merged["losses"], key=int)] if merged else [step["loss"]]
            values = [float("nan" if each is None else each) for each in told]
            found.append(sum(values) / len(values))
        return found


def _complete(step: dict[str, Any]) -> dict[str, Any]:
    """Return what all ranks recorded; nothing where one of them did not answer, or there is one alone."""
    merged: dict[str, Any] = step.get("ranks") or {}
    return merged if "local" in merged and "layers" in merged and not merged["missing"] else {}


def _whole(step: dict[str, Any], merged: dict[str, Any]) -> Rows:
    if not merged:
        return list(step["compare"]["layers"])
    ranks = [merged["layers"][rank] for rank in sorted(merged["layers"], key=int)]
    return [whole_batch(rows) for rows in zip(*ranks, strict=False)]


def _means(step: dict[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    if not merged:
        return {name: estimated(each) for name, each in step["compare"]["gradients"].items()}
    ranks = [merged["local"][rank] for rank in sorted(merged["local"], key=int)]
    return {name: mean_of([rank[name] for rank in ranks]) for name in ranks[0] if all(name in each for each in ranks)}
