"""A workload of torch whose faults are settings, for runs of several processes."""

import os
import signal
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Regression:
    backends = ("torch",)

    def __init__(
        self, rows: int = 160, batch_size: int = 32, fault: str = "", at: int = 3, mark: str = "", pace: float = 0.0,
        epoch: int = 1,
    ):  # fmt: skip
        self.batch_size, self.fault, self.at, self.mark, self.pace = batch_size, fault, at, mark, pace
        self.epoch = epoch
        rng = np.random.default_rng(0)
        self.x, self.w = rng.standard_normal((rows, 8), np.float32), np.arange(8, dtype=np.float32)

    def make_model(self):
        if self.fault == "killed in make_model" and os.environ.get("RANK") == "1" and self.first_start():
            os.kill(os.getpid(), signal.SIGKILL)
        own = 0 if self.fault == "sharded" else int(os.environ.get("RANK", 0))
        torch.manual_seed(own)  # DistributedDataParallel copies the weights of rank 0; fully_shard copies none
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        if self.fault == "sharded" and dist.is_initialized():
            return fully_shard(model)
        return DistributedDataParallel(model) if self.fault == "wrapped" and dist.is_initialized() else model

    def make_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    def batches(self, epoch):
        rank = os.environ.get("RANK")
        own = int(rank or 0) if self.fault == "other order" else 0
        order = np.random.default_rng((epoch, own)).permutation(len(self.x))
        for number, start in enumerate(range(0, len(order), self.batch_size)):
            here = epoch >= self.epoch and number == self.at and rank == "1"
            if self.fault == "killed" and here and self.first_start():
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "raised" and here:
                raise ValueError("a fault of the data")
            if self.fault == "ends early" and here:
                return
            if self.fault == "stopped" and here:
                os.kill(os.getpid(), signal.SIGTERM)
            if self.pace and not os.path.exists(self.mark):
                time.sleep(self.pace)
            yield self.batch(order[start : start + self.batch_size], number)

    def first_start(self):
        if not self.mark:
            return os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        first = not os.path.exists(self.mark)
        os.makedirs(self.mark, exist_ok=True)
        return first

    def batch(self, chosen, number):
        x = self.x[chosen]
        y = x @ self.w[:, None]
        if self.fault == "overflow" and number == self.at:
            x = x.copy()
            x[-1] = 1e38  # a row of the last rank
        found = {"x": x, "y": y}
        return {"mask": np.ones((5, 5), np.float32)} | found if self.fault in ("lengths", "own part") else found

    def evaluate(self, amp, model):
        with amp.inference(model):
            found = amp.to_numpy(model(amp.to_native(self.x)))
        return -float(np.square(found - self.x @ self.w[:, None]).mean())


class Listed(Regression):
    """Its batches have a length."""

    def batches(self, epoch):
        found = list(super().batches(epoch))
        return found[:-1] if self.fault == "fewer" and os.environ.get("RANK") == "1" else found


class OwnPart(Regression):
    def shard(self, batch, rank, ranks):
        return {**batch, "x": batch["x"][rank::ranks], "y": batch["y"][rank::ranks]}
