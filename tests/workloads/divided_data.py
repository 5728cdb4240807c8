"""The data of workloads whose faults are settings, in the order in which each epoch shows it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np


class Divided:
    """A linear function of 8 features, and what happens in one of several processes.

    Args:
        rows, batch_size: of the data.
        fault: what goes wrong.
        at, epoch: in which batch, and from which epoch on.
        mark: a folder that says that the fault has happened.
    """

    def __init__(
        self, rows: int = 160, batch_size: int = 32, fault: str = "", at: int = 3, mark: str = "", epoch: int = 1
    ):
        self.batch_size, self.fault, self.at, self.mark, self.epoch = batch_size, fault, at, mark, epoch
        rng = np.random.default_rng(0)
        self.x, self.w = rng.standard_normal((rows, 8), np.float32), np.arange(8, dtype=np.float32)

    def rank(self) -> int:
        """This process's number, as its launcher told it."""
        raise NotImplementedError

    def batches(self, epoch: int) -> Iterator[dict[str, Any]]:
        own = self.rank() if self.fault == "other order" else 0
        order = np.random.default_rng((epoch, own)).permutation(len(self.x))
        for number, start in enumerate(range(0, len(order), self.batch_size)):
            if epoch >= self.epoch and number == self.at and self.rank() == 1:
                if self.fault == "ends early":
                    return
                self.fail()
            yield self.batch(order[start : start + self.batch_size], number)

    def fail(self) -> None:
        """Stop or kill this process, or raise, as the fault says."""
        if self.fault == "raised":
            raise ValueError("a fault of the data")
        if self.fault == "stopped":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.fault == "killed" and not os.path.exists(self.mark):
            os.makedirs(self.mark)
            os.kill(os.getpid(), signal.SIGKILL)

    def batch(self, chosen: np.ndarray, number: int) -> dict[str, Any]:
        x = self.x[chosen]
        y = x @ self.w[:, None]
        if self.fault == "overflow" and number == self.at:
            y[-1] = 1e38  # a row of the last process
        return {"x": x, "y": y}

    def evaluate(self, amp: Any, model: Any) -> float:
        with amp.inference(model):
            found = amp.to_numpy(model(amp.to_native(self.x)))
        return -float(np.square(found - self.x @ self.w[:, None]).mean())
