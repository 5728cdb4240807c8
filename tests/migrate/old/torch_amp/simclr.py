"""SimCLR's class: everything comes by keyword arguments, the flag is called fp16_precision."""

import argparse

import torch
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast


class SimCLR:
    def __init__(self, *args, **kwargs):
        self.args = kwargs["args"]
        self.model = kwargs["model"]
        self.optimizer = kwargs["optimizer"]
        self.scheduler = kwargs["scheduler"]
        self.criterion = torch.nn.CrossEntropyLoss()

    def info_nce_loss(self, features):
        features = F.normalize(features, dim=1)
        similarity = features @ features.T
        mask = torch.eye(len(features), dtype=torch.bool)
        logits = similarity[~mask].view(len(features), -1) / 0.5
        return logits, torch.zeros(len(features), dtype=torch.long)

    def train(self, train_loader):
        scaler = GradScaler(enabled=self.args.fp16_precision)
        for images in train_loader:
            with autocast(enabled=self.args.fp16_precision):
                features = self.model(images)
                logits, labels = self.info_nce_loss(features)
                loss = self.criterion(logits, labels)
            self.optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()
        self.scheduler.step()


def train(flag):
    torch.manual_seed(5)
    args = argparse.Namespace(fp16_precision=flag)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    SimCLR(model=model, optimizer=optimizer, scheduler=scheduler, args=args).train([torch.randn(6, 6) for _ in range(4)])
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
