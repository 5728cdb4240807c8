"""What ranks that train together must do, in numpy's float64, written without looking at the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .case import LEARNING_RATE, Array, RankCase, RankKind, RankStep, Rows, owned

Gradients = list[list[Array | None]]
"""Parameter → rank → the gradient that its optimizer is given; None: it has none."""


@dataclass
class RankOracle:
    """Plain SGD on several ranks with one dynamic loss scale.

    Args:
        case: what is trained.
        kind: how the ranks train together.
        count: how many there are.
        scale, good, bad: what the loss scale begins with.
    """

    case: RankCase
    kind: RankKind
    count: int
    scale: float
    good: int = 0
    bad: int = 0
    weights: list[list[Array]] = field(default_factory=list)
    moments: dict[tuple[int, int], Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = [[each.astype(np.float64) for each in self.case.weights] for _ in range(self.count)]

    def run(self) -> list[list[RankStep]]:
        """Return step → rank → what it must say."""
        window = self.case.window
        starts = range(0, len(self.case.batches), window)
        return [self._step(self.case.batches[start : start + window]) for start in starts]

    def _step(self, window: Sequence[Sequence[Rows]]) -> list[RankStep]:
        gradients = self._reduced([self._summed(window, rank) for rank in range(self.count)])
        applied, skipped = 0, 0
        norms: list[list[float]] = [[] for _ in range(self.count)]
        for params in owned(self.case.optimizers):
            there = [each for param in params for each in gradients[param] if each is not None]
            self._clip(gradients, params, norms)
            if not there:
                continue
            if not all(np.isfinite(each).all() for each in there):
                skipped += 1
                continue
            applied += 1
            self._apply(gradients, params)
        self._scale(applied, skipped)
        return [
            RankStep(applied, skipped, self.scale, tuple(norms[rank]), tuple(w.copy() for w in self.weights[rank]))
            for rank in range(self.count)
        ]

    def _summed(self, window: Sequence[Sequence[Rows]], rank: int) -> list[Array | None]:
        """Return a rank's own gradients: means over the micro-batches of a window."""
        given = [ranks[rank] for ranks in window]
        columns = [[row.astype(np.float64) for row in column if row is not None] for column in zip(*given, strict=True)]
        with np.errstate(invalid="ignore"):
            return [np.sum(column, axis=0) / len(window) if column else None for column in columns]

    def _reduced(self, own: Sequence[Sequence[Array | None]]) -> Gradients:
        return [self._over_ranks(param, column) for param, column in enumerate(map(list, zip(*own, strict=True)))]

    def _over_ranks(self, param: int, column: list[Array | None]) -> list[Array | None]:
        there = [each for each in column if each is not None]
        if param in self.kind.own or not there:
            return column
        with np.errstate(invalid="ignore"):
            total: Array = np.sum(there, axis=0)
        return [total / len(column) if self.kind.reduction == "mean" else total] * len(column)

    def _clip(self, gradients: Gradients, params: Sequence[int], norms: list[list[float]]) -> None:
        if self.case.max_norm is None:
            return
        for rank in range(self.count):
            mine = [(param, each) for param in params if (each := gradients[param][rank]) is not None]
            with np.errstate(invalid="ignore"):
                norm = float(np.sqrt(sum(np.square(each).sum() for _, each in mine)))
                norms[rank].append(norm if np.isfinite(norm) else np.inf)
                for param, each in mine if norm > self.case.max_norm else ():
                    gradients[param][rank] = each * (self.case.max_norm / norm)

    def _apply(self, gradients: Gradients, params: Sequence[int]) -> None:
        for param in params:
            for rank, gradient in enumerate(gradients[param]):
                if gradient is None:
                    continue
                moment = self.case.momentum * self.moments.get((param, rank), np.zeros_like(gradient)) + gradient
                self.moments[param, rank] = moment
                self.weights[rank][param] = self.weights[rank][param] - LEARNING_RATE * moment

    def _scale(self, applied: int, skipped: int) -> None:
        settings = self.case.scale
        if skipped:
            self.good, self.bad = 0, self.bad + 1
            if self.bad >= settings.hysteresis:
                self.scale = max(settings.min_scale, self.scale * settings.backoff_factor)
        elif applied:
            self.bad, self.good = 0, self.good + 1
            if self.good == settings.growth_interval:
                self.good, self.scale = 0, min(settings.max_scale, self.scale * settings.growth_factor)
