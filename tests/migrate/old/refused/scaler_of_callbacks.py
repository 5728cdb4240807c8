"""A trainer whose optimizers, and whose callbacks, are objects of other code that get the scaler."""

import torch
from callbacks import Attributes
from engine import Optimizers
from torch.cuda.amp import GradScaler


class Trainer:
    def __init__(self, pipeline, config):
        self.pipeline = pipeline
        self.optimizers = Optimizers(config, pipeline.get_param_groups())
        self.scaler = GradScaler(enabled=config.mixed_precision)
        self.callbacks = pipeline.callbacks(Attributes(optimizers=self.optimizers, scaler=self.scaler))

    def step(self, x):
        self.optimizers.zero_grad()
        with torch.autocast("cuda"):
            loss = self.pipeline.loss(x)
        self.scaler.scale(loss).backward()
        self.optimizers.scaler_step(self.scaler)
        self.scaler.update()
