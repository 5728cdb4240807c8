"""Methods make a scaler for who asks for AMP; two trainers that train without it as well."""

import torch
from torch.cuda.amp import GradScaler, autocast


class Asked:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = None

    def enable_amp(self):
        self.scaler = GradScaler()

    def fit(self, batches):
        for x in batches:
            self.optimizer.zero_grad()
            if self.scaler is None:
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()
                continue
            with autocast():
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


class Flagged:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.use_amp = False

    def enable_amp(self):
        self.use_amp = True
        self.scaler = GradScaler()

    def fit(self, batches):
        for x in batches:
            self.optimizer.zero_grad()
            if self.use_amp:
                with autocast():
                    loss = self.model(x).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()
