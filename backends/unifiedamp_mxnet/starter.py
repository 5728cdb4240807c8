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

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn


@dataclass
class MyModel:
    """The fields are settings: `--set hidden=256` changes one."""

    hidden: int = 128
    batch_size: int = 64
    learning_rate: float = 0.1
    seed: int = 0

    backends = ("mxnet",)
    may_change = ("learning_rate",)  # what a resumed run may change

    def __post_init__(self) -> None:
        """Make the data: 4096 points of 32 features in 8 classes. Read yours here."""
        rng = np.random.default_rng(self.seed)
        centers = rng.standard_normal((8, 32), np.float32)
        self.labels = rng.integers(0, 8, 4096 + 512)
        self.points = centers[self.labels] + 1.2 * rng.standard_normal((len(self.labels), 32), np.float32)

    def make_model(self) -> nn.Block:
        """Return the model, initialized."""
        mx.random.seed(self.seed)
        model = nn.HybridSequential()
        model.add(nn.Dense(self.hidden, activation="relu", in_units=32), nn.Dense(8, in_units=self.hidden))
        model.initialize(mx.init.Xavier())
        return model

    def make_optimizer(self, model: nn.Block) -> gluon.Trainer:
        """Return the model's Trainer, which updates in this process so that a step can be skipped."""
        settings = {"learning_rate": self.learning_rate, "momentum": 0.9}
        return gluon.Trainer(model.collect_params(), "sgd", settings, update_on_kvstore=False)

    def loss(self, model: nn.Block, batch: tuple[Any, Any]) -> Any:
        """Return the mean loss of a batch; runs under autocast, and nothing else here needs to know of precision."""
        points, labels = batch
        return gluon.loss.SoftmaxCrossEntropyLoss()(model(points), labels).mean()

    def batches(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of an epoch; the order depends on the epoch alone. A gluon DataLoader will do as well."""
        order = np.random.default_rng([self.seed, epoch]).permutation(4096)
        for start in range(0, 4096 - self.batch_size + 1, self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield self.points[chosen], self.labels[chosen]

    def evaluate(self, amp: Any, model: nn.Block) -> dict[str, float]:
        """Return scores, higher is better. Optional: without it, runs are judged by their loss."""
        with amp.inference(model):
            logits = amp.to_numpy(model(amp.to_native(self.points[4096:])))
        right = logits.argmax(1) == self.labels[4096:]
        return {"accuracy": float(right.mean()), "samples": len(right)}
