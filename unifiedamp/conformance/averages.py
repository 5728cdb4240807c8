"""What an exponential moving average must be, in numpy's float64, written without looking at the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class AverageOracle:
    """The average of named weights, told of each applied step.

    Attributes:
        decay, warmup: see ``Amp.ema``.
        updates: applied steps so far.
        values: name → float64 array.
    """

    decay: float
    warmup: bool = False
    updates: int = 0
    values: dict[str, Any] = field(default_factory=dict)

    def step(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Take an applied step, by the weights before and after it."""
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        for name, weight in after.items():
            start = self.values.get(name, before[name])
            self.values[name] = d * np.float64(start) + (1 - d) * np.float64(weight)

    def check(self, found: Mapping[str, Any], rtol: float = 2e-6) -> None:
        """Compare what a backend has; it may have more names."""
        for name, value in self.values.items():
            assert found[name].dtype == np.float32, f"{name} is {found[name].dtype}"
            np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-7, err_msg=name)
