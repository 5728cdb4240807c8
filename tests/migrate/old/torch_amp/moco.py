"""Momentum contrast: the key encoder follows without gradients, and the scaler is passed by keyword."""

import torch
from torch import nn


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q, self.encoder_k = nn.Linear(6, 4), nn.Linear(6, 4)
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data.copy_(q.data)
            k.requires_grad = False

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * 0.9 + q.data * 0.1

    def forward(self, im_q, im_k):
        q = nn.functional.normalize(self.encoder_q(im_q).float(), dim=1)
        with torch.no_grad():
            self._momentum_update()
            k = nn.functional.normalize(self.encoder_k(im_k).float(), dim=1)
        return q @ k.T / 0.2


def train_epoch(loader, model, criterion, optimizer, epoch, *, scaler, amp):
    for images in loader:
        with torch.autocast("cuda", enabled=amp):
            output = model(images, images + 0.1)
            loss = criterion(output, torch.arange(len(images)))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train(flag):
    torch.manual_seed(7)
    model = MoCo()
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=flag, init_scale=512.0)
    for epoch in range(2):
        train_epoch([torch.randn(5, 6) for _ in range(3)], model, nn.CrossEntropyLoss(), optimizer, epoch, scaler=scaler, amp=flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
