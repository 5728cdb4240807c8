"""A segmentation network's training: keyword arguments all the way, clipping after unscaling, a loss of two parts."""

import logging

import torch
import torch.nn.functional as F
from torch import nn, optim


def dice_loss(pred, target):
    inter = 2 * (pred * target).sum()
    return 1 - (inter + 1e-6) / (pred.sum() + target.sum() + 1e-6)


def train_model(model, device, epochs: int = 2, learning_rate: float = 0.05, amp: bool = False, gradient_clipping: float = 1.0):
    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp, init_scale=1024.0)
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0
        for _ in range(3):
            images = torch.randn(4, 6).to(device=device, dtype=torch.float32)
            true_masks = (torch.rand(4, 1) > 0.5).float()
            with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += dice_loss(F.sigmoid(masks_pred), true_masks)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            global_step += 1
            epoch_loss += loss.item()
        scheduler.step(epoch_loss)
        logging.info(epoch_loss)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_classes = 1
        self.body = nn.Linear(6, 1)

    def forward(self, x):
        return self.body(x)


def train(flag):
    torch.manual_seed(4)
    model = Net()
    train_model(model=model, device=torch.device("cpu"), amp=flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
