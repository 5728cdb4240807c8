"""A trainer makes the scaler, and each epoch is given its optimizer; a script's function has a scaler of the module."""

import torch
from torch.cuda.amp import GradScaler, autocast

FLAG = {"on": False}


class ContrastTrainer:
    def __init__(self, encoder, memory=None, fp16=False):
        super().__init__()
        self.encoder = encoder
        self.memory = memory
        self.fp16 = fp16
        self.scaler = GradScaler(init_scale=1024.0, enabled=fp16)

    def train(self, epoch, batches, optimizer, scheduler, train_iters=3):
        """One epoch."""
        self.encoder.train()
        losses = []
        for i in range(train_iters):
            optimizer.zero_grad()
            inputs, labels = self._parse(batches[i])
            with autocast(enabled=self.fp16):
                features = self._forward(inputs, epoch)
                loss = self.memory(features, labels)
            self.scaler.scale(loss).backward()
            self.scaler.step(optimizer)
            self.scaler.update()
            losses.append(loss.item())
        scheduler.step()
        return sum(losses)

    def _parse(self, batch):
        return batch[0], batch[1]

    def _forward(self, inputs, epoch):
        return self.encoder(inputs) * (1 + epoch)


def run(flag):
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    memory = torch.nn.MSELoss()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    trainer = ContrastTrainer(encoder, memory, fp16=flag)
    batches = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(3)]
    for epoch in range(3):
        trainer.train(epoch, batches, optimizer, scheduler)
    return encoder


def train(flag):
    torch.manual_seed(9)
    encoder = run(flag)
    return [w for p in encoder.parameters() for w in p.detach().flatten().tolist()]
