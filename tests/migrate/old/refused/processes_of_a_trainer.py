"""A trainer that keeps its scaler and starts one process per GPU, each of which runs a method of the trainer."""

import torch
import torch.multiprocessing as mp
from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, model, use_amp):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = GradScaler(enabled=use_amp)
        self.use_amp = use_amp

    def fit(self, batches, gpus):
        if gpus > 1:
            mp.spawn(self.fit_on, args=(batches,), nprocs=gpus)
        else:
            self.fit_on(0, batches)

    def fit_on(self, rank, batches):
        for x in batches:
            self.optimizer.zero_grad()
            with autocast(enabled=self.use_amp):
                loss = self.model(x).sum()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
