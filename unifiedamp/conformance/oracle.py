"""What every backend must do to a probe model, in plain Python floats, written without looking at the library.

One vector of true gradients per micro-batch goes in; weights, scales and counters come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Oracle:
    """Plain SGD with a dynamic loss scale."""

    weights: list[float]
    lr: float = 0.1
    scale: float = 4.0
    growth_interval: int = 3
    growth: float = 2.0
    backoff: float = 0.5
    low: float = 2.0**-14
    high: float = 2.0**24
    hysteresis: int = 1
    hysteresis_reset: str = "good_step"
    window: int = 1
    clip_norm: float | None = None
    good: int = 0
    bad: int = 0
    overflows: int = 0
    applied: int = 0
    skipped: int = 0
    pending: list[list[float]] = field(default_factory=list)
    scales_used: list[float] = field(default_factory=list)

    def feed(self, gradients: list[float]) -> None:
        """Take one micro-batch's true gradients."""
        self.scales_used.append(self.scale)
        self.pending.append(list(gradients))
        if len(self.pending) < self.window:
            return
        columns = list(zip(*self.pending, strict=True))
        self.pending = []
        if not all(math.isfinite(g) and math.isfinite(g * self.scale) for column in columns for g in column):
            self._overflow()
            return
        mean = [sum(column) / self.window for column in columns]
        if self.clip_norm is not None:
            norm = math.sqrt(sum(g * g for g in mean))
            mean = [g * min(1.0, self.clip_norm / norm) for g in mean] if norm > 0 else mean
        self.weights = [w - self.lr * g for w, g in zip(self.weights, mean, strict=True)]
        self.applied += 1
        self.bad = 0
        self.good += 1
        if self.good == self.growth_interval:
            self.good = self.overflows = 0
            self.scale = min(self.high, self.scale * self.growth)

    def _overflow(self) -> None:
        self.skipped += 1
        self.good = 0
        self.bad += 1
        self.overflows += 1
        if (self.bad if self.hysteresis_reset == "good_step" else self.overflows) >= self.hysteresis:
            self.scale = max(self.low, self.scale * self.backoff)
