"""A class makes optimizer and scaler over parameters that it is given, and is given the losses, too."""

import torch


class Optimizer:
    def __init__(self, parameters, use_amp):
        self.optimizer = torch.optim.AdamW(parameters, lr=0.01)
        self.use_amp = use_amp
        self.scaler = torch.cuda.amp.GradScaler(enabled=use_amp) if use_amp else None

    def __call__(self, loss):
        self.optimizer.zero_grad()
        if self.scaler is not None:
            with torch.cuda.amp.autocast():
                self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
