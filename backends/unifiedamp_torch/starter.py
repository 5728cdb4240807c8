"""A workload for the `unifiedamp` command: put your model, data and loss in the places of these.

unifiedamp train my_model.py --policy mixed_bfloat16 --epochs 3
unifiedamp train my_model.py --set hidden=256 --set learning_rate=0.05
unifiedamp compare my_model.py --policies float32,mixed_bfloat16,mixed_float16
unifiedamp tune my_model.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass
class MyModel:
    """The fields are settings: `--set hidden=256` changes one."""

    hidden: int = 128
    batch_size: int = 64
    learning_rate: float = 0.1
    seed: int = 0

    backends = ("torch",)
    may_change = ("learning_rate",)  # what a resumed run may change

    def __post_init__(self) -> None:
        """Make the data: 4096 points of 32 features in 8 classes. Read yours here."""
        rng = np.random.default_rng(self.seed)
        centers = rng.standard_normal((8, 32), np.float32)
        self.labels = rng.integers(0, 8, 4096 + 512)
        self.points = centers[self.labels] + 1.2 * rng.standard_normal((len(self.labels), 32), np.float32)

    def make_model(self) -> nn.Module:
        """Return the model, on any device; unifiedamp moves it."""
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.Linear(32, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 8))

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of the model."""
        return torch.optim.SGD(model.parameters(), self.learning_rate, momentum=0.9)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch; runs under autocast, and nothing else here needs to know of precision."""
        points, labels = batch
        return nn.functional.cross_entropy(model(points), labels)

    def batches(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of an epoch; the order depends on the epoch alone. A DataLoader will do as well."""
        order = np.random.default_rng([self.seed, epoch]).permutation(4096)
        for start in range(0, 4096 - self.batch_size + 1, self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield self.points[chosen], self.labels[chosen]

    def evaluate(self, amp: Any, model: nn.Module) -> dict[str, float]:
        """Return scores, higher is better. Optional: without it, runs are judged by their loss."""
        with amp.inference(model):
            logits = amp.to_numpy(model(amp.to_native(self.points[4096:])))
        right = logits.argmax(1) == self.labels[4096:]
        return {"accuracy": float(right.mean()), "samples": len(right)}
