"""A trainer class that is given model and optimizer, and scales losses with an Apex that other code initializes."""

import torch

try:
    from apex import amp

    AMP_AVAILABLE = True
except ImportError:
    AMP_AVAILABLE = False


class Trainer:
    def __init__(self, model, optimizer, loader, use_amp=False, accumulate=1, max_norm=None):
        if use_amp and not AMP_AVAILABLE:
            raise ImportError("apex is not installed")
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.use_amp = use_amp
        self.accumulate = accumulate
        self.max_norm = max_norm

    def train(self, epochs):
        for _ in range(epochs):
            self.model.train()
            for step, (x, y) in enumerate(self.loader):
                output = self.model.forward(x)
                per_sample_loss = (output - y).pow(2).mean(1)
                self.backward_propagate(per_sample_loss, step)
        return self.model

    def backward_propagate(self, loss, step):
        loss = self.adjust_loss(loss)
        if self.use_amp:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        if (step + 1) % self.accumulate == 0:
            if self.max_norm is not None:
                if self.use_amp:
                    torch.nn.utils.clip_grad_norm_(amp.master_params(self.optimizer), self.max_norm)
                else:
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def adjust_loss(self, loss):
        return loss.mean() / self.accumulate
