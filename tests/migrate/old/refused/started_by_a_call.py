"""A method starts AMP, and is called where a flag says so; the steps ask the same flag."""

import torch
from apex import amp


class Learner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.mixed = False

    def resume(self, path):
        self.mixed = torch.load(path)["mixed"]
        if self.mixed:
            self.to_fp16()

    def to_fp16(self):
        self.mixed = True
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")

    def step(self, x):
        loss = self.model(x).mean()
        if self.mixed:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
